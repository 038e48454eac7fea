"""What every part of a store stands on: settings with their bounds."""
