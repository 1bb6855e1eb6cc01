"""Running times, as ratios within one run."""
