//! Convolutions between tensors in blocks of channels.

pub mod direct;
pub mod grouped;
pub mod halo;
pub mod regions;
pub mod tiled;
