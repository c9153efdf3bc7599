//! Passes: each changes a program. `pipeline.rs` lists them in order.

pub mod attention_fusion;
pub mod batch_tiling;
pub mod blocked_layout;
pub mod byte_layout;
pub mod dead_code;
pub mod dead_taps;
pub mod fusion;
pub mod half_layout;
pub mod halo;
pub mod in_place;
pub mod isolation;
pub mod memory_planning;
pub mod packing_reuse;
pub mod phase_decomposition;
pub mod prefetch;
pub mod prepacking;
pub mod promotion;
pub mod row_fusion;
pub mod split_reduction;
pub mod static_quantization;
pub mod update_fusion;
pub mod update_schedule;
pub mod weight_packing;
