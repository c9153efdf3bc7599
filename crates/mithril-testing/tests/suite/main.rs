//! Tests over all ops, layers and stages, in one program: it links once, and long tests run side by side.

mod c;
mod c_layout;
mod c_mesh;
mod c_parts;
mod c_passes;
mod c_programs;
mod c_random;
mod c_text;
mod collectives;
mod ggml;
mod ggml_plan;
mod gguf;
mod layers;
mod loops;
mod partition;
mod partition_halo;
mod partition_random;
mod properties;
mod raise;
mod registry;
mod stages;
mod stages_random;
mod text;
mod tidy;
mod weights;
