"""Rules from papers that the defences are compared with."""
