"""The git repository around a folder: what git knows of it, its settings, its namespace. Every way in asks here."""
