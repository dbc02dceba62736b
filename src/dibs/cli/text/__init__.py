"""From documents to lines for people. Pure, but for the status line of somebody who waits."""
