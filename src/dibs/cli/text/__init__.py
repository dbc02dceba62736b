"""Documents as text for people, where several commands say the same. Pure."""
