"""Loaders that users have, each in a process of its own with a deadline: some hang without a driver, all keep memory.

``child.py`` runs in that process and times each load; ``process.py`` is its parent's side; ``loaders.py`` holds one
small class per loader.
"""
