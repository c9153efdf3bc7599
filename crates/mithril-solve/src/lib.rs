//! Solver for shapes, dtypes and literal values; knows relations, no op.
