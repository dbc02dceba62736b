"""What systems do differently: Linux, macOS, and what every Unix has."""
