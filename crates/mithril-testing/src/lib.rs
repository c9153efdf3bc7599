//! Samples per op, tolerances, limitations and the Target x Suite runner.
