//! What differs in an export whose program is divided over a mesh: a file of weights for ranks that hold different parts, the
//! recorded data of each rank, an implementation of the mesh for MPI, and a check that runs on all ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use mithril_compile::partition::Partitioned;
use mithril_compile::partition::rule::Placement;
use mithril_compile::partition::virtual_mesh::part;
use mithril_ir::graph::{Def, Role};
use mithril_ir::{Code, Error, Result, Tensor};

use super::{Export, Values, comment};
use crate::c::compiler::Tool;
use crate::c::mpi::Mpi;
use crate::interpreter::Tensors;

/// Words of the templates that are the same for every mesh.
const WORDS: &[(&str, &str)] = &[
    (
        "mesh_files",
        "/* The file with the weights of a rank. */\nconst char *@prefix@_weights_file(const mithril_mesh *mesh);\n\n",
    ),
    (
        "mesh_note",
        "\n   All ranks of the mesh open it, each with the file of its weights (@prefix@_weights_file). `mesh` must stay open longer.",
    ),
    ("mesh_parameter", ", const mithril_mesh *mesh"),
    ("mesh_field", "    const mithril_mesh *mesh;\n"),
    ("set_mesh", "        model->mesh = mesh;\n"),
    ("mesh_argument", ", model->mesh"),
    (
        "mesh_table",
        "\nconst char *@prefix@_weights_file(const mithril_mesh *mesh) {\n    \
         static const char *const files[] = {@weight_files@};\n    int rank = 0;\n    \
         for (int axis = 0; axis < mesh->axes; axis++) rank = rank * mesh->sizes[axis] + mesh->places[axis];\n    \
         return files[rank];\n}\n",
    ),
    (
        "usage",
        "Usage: mpirun -n @ranks@ check [THREADS [FOLDER]]; the files are in this folder unless another one is named.",
    ),
    ("header", "_mpi"),
    ("abort", "    MPI_Abort(MPI_COMM_WORLD, 1);\n"),
    (
        "file_names",
        "    const char *folder = argc > 2 ? argv[2] : \".\";\n    char weights_path[4096], check[4096];\n    const char *weights = weights_path;\n    \
         int provided, rank, ranks, go_on = 1;\n    \
         MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);\n    \
         MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n    MPI_Comm_size(MPI_COMM_WORLD, &ranks);\n    \
         if (ranks != @PREFIX@_RANKS) {\n        \
         if (rank == 0)\n            \
         fprintf(stderr, \"the mesh has %d ranks, and there are %d processes: start it by mpirun -n %d\\n\",\n                    \
         @PREFIX@_RANKS, ranks, @PREFIX@_RANKS);\n        \
         MPI_Finalize();\n        return 1;\n    }\n    \
         mithril_mesh *mesh = @prefix@_mpi_open(MPI_COMM_WORLD);\n    \
         if (!mesh) return fail(strerror(errno), \"the mesh\");\n    \
         snprintf(weights_path, sizeof weights_path, \"%s/%s\", folder, @prefix@_weights_file(mesh));\n    \
         snprintf(check, sizeof check, \"%s/@prefix@.%d.check\", folder, rank);\n",
    ),
    ("main_mesh", ", mesh"),
    (
        "whole",
        "    /* That of the whole tensor, of which this is a part. */\n    \
         MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);\n",
    ),
    ("largest", "        MPI_Allreduce(MPI_IN_PLACE, &d, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);\n"),
    ("first", "if (rank == 0) "),
    (
        "goes_on",
        "(go_on = calls < 1000 && clock() - start < CLOCKS_PER_SEC / 5,\n            \
         MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD), go_on)",
    ),
    (
        "mesh_end",
        "    @prefix@_mpi_close(mesh);\n    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);\n    \
         MPI_Finalize();\n",
    ),
    ("make_mpi", "MPICC ?= mpicc\nMPIRUN ?= mpirun\n"),
    ("make_cc", "MPICC"),
    ("make_run", "$(MPIRUN) -n @ranks@ "),
    ("mpi_files", " @prefix@_mpi.c @prefix@_mpi.h"),
    ("mpi_source", " @prefix@_mpi.c"),
    ("cmake_find", "find_package(MPI REQUIRED COMPONENTS C)\n"),
    (
        "cmake_library",
        "# The mesh over processes of MPI.\nadd_library(@prefix@_mpi @prefix@_mpi.c @prefix@_mpi.h)\n\
         target_link_libraries(@prefix@_mpi PUBLIC @prefix@_model MPI::MPI_C)\n\n",
    ),
    ("cmake_link", "@prefix@_mpi"),
    ("cmake_run", "${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} @ranks@ $<TARGET_FILE:check>"),
    (
        "mpi_rows",
        "| `@prefix@_mpi.c`, `@prefix@_mpi.h` | what exchanges tensors between the ranks, by MPI |\n",
    ),
    ("check_files", "@prefix@.*.check"),
    (
        "use_mesh",
        "MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);\nmithril_mesh *mesh = @prefix@_mpi_open(MPI_COMM_WORLD);\n",
    ),
    ("use_argument", ", mesh"),
];

/// Those of an export for one process that are not empty.
const WITHOUT: &[(&str, &str)] = &[
    (
        "usage",
        "Usage: check [THREADS [WEIGHTS CHECK]]; the files are @prefix@.weights and @prefix@.check unless they are named.",
    ),
    (
        "file_names",
        "    const char *weights = argc > 2 ? argv[2] : @weights_path@, *check = argc > 3 ? argv[3] : \"@prefix@.check\";\n",
    ),
    ("goes_on", "calls < 1000 && clock() - start < CLOCKS_PER_SEC / 5"),
    ("make_mpi", "CC ?= cc\n"),
    ("make_cc", "CC"),
    ("cmake_link", "@prefix@_model"),
    ("cmake_run", "check"),
    ("check_files", "@prefix@.check"),
];

/// A mesh that an exported program runs on.
#[derive(Debug)]
pub(super) struct MeshExport {
    /// The program of each rank.
    program: Partitioned,
    /// What its check is built with and started by.
    pub(super) mpi: Mpi,
    /// For each rank which of the files of weights it reads.
    files: Vec<usize>,
}

/// What a rank holds of values.
#[derive(Debug)]
pub(super) struct RankValues<'a> {
    mesh: &'a MeshExport,
    values: &'a dyn Values,
    rank: usize,
}

impl Values for RankValues<'_> {
    fn value(&self, name: &str) -> Result<Option<Arc<Tensor>>> {
        let graph = &self.mesh.program.graph;
        let place = graph.inputs.iter().position(|&v| graph.value(v).name.as_deref() == Some(name));
        let whole = self.values.value(name)?;
        Ok(match (whole, place) {
            (Some(whole), Some(i)) => Some(self.mesh.part(&whole, &self.mesh.program.inputs[i], self.rank)),
            (whole, _) => whole,
        })
    }
}

impl MeshExport {
    /// The mesh of a program.
    ///
    /// # Errors
    /// If there is no MPI, which the check needs.
    pub(super) fn new(program: Partitioned, tool: &Tool, spec: &Export<'_>) -> Result<Self> {
        if spec.inside == Some(true) {
            return Err(Error::new(
                Code::BadArgument,
                "weights_inside does not go with a layout: ranks hold different weights",
            )
            .help("leave out weights_inside, or the layout"));
        }
        let mpi = Mpi::find(tool)?;
        let mut known = BTreeMap::new();
        let files = (0..program.mesh.devices())
            .map(|rank| {
                let next = known.len();
                *known.entry(held(&program, rank)).or_insert(next)
            })
            .collect();
        Ok(Self { program, mpi, files })
    }
    /// Number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.program.mesh.devices()
    }
    /// The files of weights, and a rank that reads each.
    pub(super) fn weight_files(&self, prefix: &str) -> Vec<(String, usize)> {
        let count = self.files.iter().max().map_or(0, |last| last + 1);
        let first = |file| self.files.iter().position(|own| *own == file).unwrap_or(0);
        (0..count).map(|file| (self.weight_file(prefix, file), first(file))).collect()
    }
    fn weight_file(&self, prefix: &str, file: usize) -> String {
        if self.files.iter().all(|own| *own == 0) {
            return format!("{prefix}.weights");
        }
        format!("{prefix}.{file}.weights")
    }
    /// The values of a rank.
    pub(super) fn values<'a>(&'a self, values: &'a dyn Values, rank: usize) -> RankValues<'a> {
        RankValues { mesh: self, values, rank }
    }
    /// The recorded outputs of a rank.
    pub(super) fn expected(&self, expected: &Tensors, rank: usize) -> Tensors {
        let names = self.program.graph.outputs.keys();
        let parts = names.zip(&self.program.outputs).filter_map(|(name, placements)| {
            Some((name.clone(), self.part(expected.get(name)?, placements, rank)))
        });
        parts.collect()
    }
    fn part(&self, whole: &Arc<Tensor>, placements: &[Placement], rank: usize) -> Arc<Tensor> {
        part(&self.program, placements, whole, &self.program.mesh.coordinates(rank))
    }
    /// The implementation for MPI, as a file of C and its header.
    pub(super) fn sources(prefix: &str) -> [(String, &'static str); 2] {
        [
            (format!("{prefix}_mpi.c"), include_str!("mpi.c")),
            (format!("{prefix}_mpi.h"), include_str!("mpi.h")),
        ]
    }
    /// The words of the templates.
    pub(super) fn words(&self, prefix: &str) -> Vec<(&'static str, String)> {
        let mesh = &self.program.mesh;
        let axes: Vec<String> =
            mesh.axes().iter().map(|(name, size)| format!("{} = {size}", comment(name))).collect();
        let names: Vec<String> =
            self.files.iter().map(|file| format!("\"{}\"", self.weight_file(prefix, *file))).collect();
        let mut words: Vec<(&'static str, String)> =
            WORDS.iter().map(|(word, text)| (*word, (*text).to_owned())).collect();
        words.push(("weight_files", names.join(", ")));
        words.push(("use_close", "@prefix@_mpi_close(mesh);\nMPI_Finalize();\n".to_owned()));
        words.push((
            "mesh_text",
            format!(
                "## Ranks\n\nThe program is that of every rank of the mesh ({}): @ranks@ processes, which run it at the same time, each \
                 on its part\nof the tensors. `@prefix@.h` says which part that is. `mpirun -n @ranks@ ./check` starts the check. \
                 `mithril_mesh` in\n`@prefix@.h` is what the ranks exchange tensors with: a struct of functions, which `@prefix@_mpi.c` \
                 implements for MPI; pass one\nof your own to connect ranks in another way.\n\n",
                axes.join(", ")
            ),
        ));
        let rows = self.weight_files(prefix).into_iter().map(|(name, _)| {
            let ranks: Vec<String> = (0..self.ranks())
                .filter(|rank| self.weight_file(prefix, self.files[*rank]) == name)
                .map(|rank| rank.to_string())
                .collect();
            let whose = if ranks.len() == self.ranks() {
                "all ranks".to_owned()
            } else {
                format!("rank {}", ranks.join(", "))
            };
            format!("| `{name}` | the weights of {whose} |\n")
        });
        words.push(("weights_row", rows.collect()));
        words.push(("weights_path", "@prefix@_weights_file(mesh)".to_owned()));
        words.push((
            "weights_note",
            "`weights` is the path of the file that @prefix@_weights_file names, which must not change while the model is open; \
             EINVAL: it\n   belongs to another rank or another version of this code."
                .to_owned(),
        ));
        words.push(("ranks", self.ranks().to_string()));
        words
    }
}

/// The words of an export for one process.
pub(super) fn words_without() -> Vec<(&'static str, String)> {
    let all = WORDS.iter().map(|(word, _)| (*word, String::new()));
    let texts = WITHOUT.iter().map(|(word, text)| (*word, (*text).to_owned()));
    // The first of a word counts.
    texts.chain(all).chain(["use_close", "mesh_text"].map(|word| (word, String::new()))).collect()
}

/// Where a rank lies along the axes of the mesh that divide a weight: ranks that are alike there hold the same weights.
fn held(program: &Partitioned, rank: usize) -> Vec<usize> {
    let graph = &program.graph;
    let is_weight =
        |i: usize| matches!(graph.value(graph.inputs[i]).def, Def::Input(Role::Param | Role::State));
    let divides = |axis: usize| {
        let mut inputs = program.inputs.iter().enumerate().filter(|(i, _)| is_weight(*i));
        inputs.any(|(_, placements)| placements[axis] != Placement::Replicate)
    };
    let places = program.mesh.coordinates(rank).into_iter().enumerate();
    places.map(|(axis, place)| if divides(axis) { place } else { 0 }).collect()
}
