"""Studies that make the figures and tables of the documentation: one file a study."""
