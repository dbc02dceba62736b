"""grite: `dibs lock` with its documents, codes and remembered leases."""
