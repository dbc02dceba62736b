"""One owner where other libraries run the work: Celery, APScheduler, Django, pytest, tooz.

Each module needs its own library and is imported by its own name. Nothing else in dibs imports this package."""
