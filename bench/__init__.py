"""Speed measurements, run by hand (`make bench`): medians and ratios within one run, never a timed test."""
