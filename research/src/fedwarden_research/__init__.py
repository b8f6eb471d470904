"""What fedwarden is measured with: papers made again, defences compared, rules and attacks for comparison."""

__version__ = "0.1.0"
