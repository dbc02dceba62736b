"""Who may have a job, and until when."""
