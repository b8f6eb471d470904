"""One client of many that does its worst."""
