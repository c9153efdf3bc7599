//! The header of a generated file: C99, usable from C++.

use crate::c::ir::program::{KernelProgram, Place};
use crate::c::request::Mesh;
use crate::c::syntax::comment::comment;
use crate::c::syntax::template::c_type;
use crate::c::syntax::wrap::wrap;
use crate::ids::Id as _;

/// Declarations of the pool, shared by all headers that a program includes.
const POOL: &str = "\
#ifndef MITHRIL_POOL
#define MITHRIL_POOL
/* The threads of the caller. */
typedef struct mithril_pool {
    int threads; /* at least 1 */
    /* Calls work(context, t) for t in 0..threads, at the same time; returns when all are done. */
    void (*run)(struct mithril_pool *self, void (*work)(void *context, int thread), void *context);
} mithril_pool;
#endif
";

/// Declarations of the mesh, of programs that are divided over one.
const MESH: &str = "\
#ifndef MITHRIL_MESH
#define MITHRIL_MESH
/* What numbers are that ranks add up or compare, and how. 16-bit floats are exchanged as float32 where they are added up. */
enum mithril_dtype {
    MITHRIL_INT8,
    MITHRIL_UINT8,
    MITHRIL_INT16,
    MITHRIL_UINT16,
    MITHRIL_INT32,
    MITHRIL_UINT32,
    MITHRIL_INT64,
    MITHRIL_UINT64,
    MITHRIL_FLOAT32,
    MITHRIL_FLOAT64
};
enum mithril_reduction { MITHRIL_SUM, MITHRIL_MAX, MITHRIL_MIN };

/* A mesh of ranks, which run one program, and how a rank exchanges tensors with those along an axis of the mesh: the ranks
   whose places on all other axes are its own, in the order of their places on this one. All of them call a function in the
   same order, each on one of its threads. A tensor that is exchanged consists of blocks, one for each rank of the axis, which
   lie one behind another. A function returns 0, or another number if it failed; then all later ones do so at once. `in` and
   `out` do not overlap. */
typedef struct mithril_mesh {
    int axes;
    const int *sizes;  /* ranks along each axis */
    const int *places; /* of this rank, along each axis */
    /* Reduces `count` numbers of all ranks; all have the result. Of floats it is NaN where one of them is. */
    int (*all_reduce)(struct mithril_mesh *self, int axis, const void *in, void *out, size_t count, int dtype,
                      int reduction);
    /* Joins the blocks of `bytes` of all ranks. */
    int (*all_gather)(struct mithril_mesh *self, int axis, const void *in, void *out, size_t bytes);
    /* Reduces the blocks of `count` numbers of all ranks; each has its own block of the result. */
    int (*reduce_scatter)(struct mithril_mesh *self, int axis, const void *in, void *out, size_t count, int dtype,
                          int reduction);
    /* Sends each rank its block of `bytes`, and joins those that are received. */
    int (*all_to_all)(struct mithril_mesh *self, int axis, const void *in, void *out, size_t bytes);
    /* Sends `bytes` to the rank at one place and receives them from that at another; -1: none. */
    int (*permute)(struct mithril_mesh *self, int axis, const void *in, void *out, size_t bytes, int to, int from);
} mithril_mesh;
#endif
";

/// The mesh of a program as macros and a comment, with what declares the type.
fn mesh_declarations(prefix: &str, mesh: &Mesh) -> String {
    let upper = prefix.to_ascii_uppercase();
    let sizes: Vec<String> = mesh.axes.iter().map(|(_, size)| size.to_string()).collect();
    let names: Vec<String> = mesh
        .axes
        .iter()
        .enumerate()
        .map(|(i, (name, size))| format!("{i}: {}, {size} ranks", comment(name)))
        .collect();
    format!(
        "{MESH}
/* The mesh of this program. Its axes: {}. Ranks are counted with the last axis running fastest. */
#define {upper}_RANKS {}
#define {upper}_MESH_AXES {}
#define {upper}_MESH_SIZES {{{}}}

",
        names.join("; "),
        mesh.ranks(),
        mesh.axes.len(),
        sizes.join(", ")
    )
}

/// What a caller sees.
fn declarations(prefix: &str, mesh: Option<&Mesh>) -> String {
    let (declared, argument, note) = match mesh {
        Some(mesh) => (
            mesh_declarations(prefix, mesh),
            ", const mithril_mesh *mesh",
            " All ranks of the mesh call it at the\n   same time, each on its part of the tensors; if one of them fails, all do.",
        ),
        None => (String::new(), "", ""),
    };
    format!(
        "{POOL}
{declared}/* Bytes of scratch memory that one call needs, aligned to 64. */
size_t {prefix}_arena_bytes(int threads);
/* Bytes of the packed parameters, aligned to 64; 0 if there is nothing to pack. */
size_t {prefix}_packed_bytes(void);
/* Bytes of scratch memory while they are packed, aligned to 64. */
size_t {prefix}_pack_bytes(void);
/* Packs the parameters among the inputs. Returns 0, or an error code. */
int {prefix}_pack(const void *const inputs[], void *packed, void *scratch);
/* The same in so many parts, each of which reads only some of the parameters: the others may be NULL meanwhile, so that not
   all of them have to be in memory at once. Nothing in the scratch memory is kept between parts. */
int {prefix}_pack_parts(void);
int {prefix}_pack_part(int part, const void *const inputs[], void *packed, void *scratch);
/* One call: inputs and outputs are contiguous in row-major order. No output may overlap an input, except for states that
   are updated in place. Without a pool (NULL) the calling thread does all the work. Returns 0, or an error code.{note} */
int {prefix}_run(const void *const inputs[], void *const outputs[], const void *packed, void *arena,
                 const mithril_pool *pool{argument});
/* The message of an error code. */
const char *{prefix}_error(int code);
"
    )
}

/// What the places of inputs and outputs are, as a comment.
fn places(program: &KernelProgram, mesh: Option<&Mesh>) -> String {
    let mut lines: Vec<(bool, usize, String)> = Vec::new();
    for buffer in &program.buffers {
        let (is_output, n) = match buffer.place {
            Place::Input(input) | Place::State { input, .. } => (false, input.index()),
            Place::Output(output) => (true, output.index()),
            _ => continue,
        };
        let mut shape = buffer.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first *= program.tiles_of(&buffer.place) as i64;
        }
        let sizes: Vec<String> = shape.iter().map(|n| format!("[{n}]")).collect();
        let sizes = sizes.concat();
        let list = if is_output { "outputs" } else { "inputs" };
        let (t, name) = (c_type(buffer.dtype), comment(&buffer.name));
        let also = match buffer.place {
            Place::State { output, .. } => format!(", updated in place: also outputs[{output}]"),
            _ => String::new(),
        };
        let part = mesh.and_then(|mesh| if is_output { mesh.outputs.get(n) } else { mesh.inputs.get(n) });
        let part = part.filter(|part| !part.is_empty()).map(|part| format!(", {part}")).unwrap_or_default();
        lines.push((is_output, n, format!("   {list}[{n}]: {t}{sizes} {name}{part}{also}\n")));
    }
    lines.sort();
    let lines: String = lines.into_iter().map(|(.., line)| line).collect();
    let whose = if mesh.is_some() { "The tensors of a rank are" } else { "All tensors are" };
    format!("/* {whose} contiguous in row-major order:\n{lines}   */\n")
}

/// What file and header declare.
pub fn declared(prefix: &str, program: &KernelProgram, mesh: Option<&Mesh>) -> String {
    wrap(&format!("{}\n{}", places(program, mesh), declarations(prefix, mesh)))
}

/// Bytes of the memory that a caller gives.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Scratch memory of a call on one thread.
    pub arena: usize,
    /// Packed parameters.
    pub packed: usize,
    /// Scratch memory while they are packed.
    pub pack: usize,
}

impl Sizes {
    /// The same as macros.
    fn text(&self, upper: &str) -> String {
        let all = [("ARENA", self.arena), ("PACKED", self.packed), ("PACK", self.pack)];
        let lines = all.map(|(name, bytes)| format!("#define {upper}_{name}_BYTES {}\n", bytes.max(1)));
        format!(
            "/* The same sizes as constants, at least 1 each, for static arrays; the arena is that of one thread. */\n{}",
            lines.concat()
        )
    }
}

/// The header file.
pub fn header(prefix: &str, declared: &str, sizes: &Sizes) -> String {
    let upper = prefix.to_ascii_uppercase();
    let (guard, sizes) = (format!("{upper}_H"), sizes.text(&upper));
    format!(
        "/* Generated by Mithril. */\n#ifndef {guard}\n#define {guard}\n\n#include <stddef.h>\n\n\
         #ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n{declared}\n{sizes}\n#ifdef __cplusplus\n}}\n#endif\n\n#endif\n"
    )
}
