//! A model as a folder of C: the code, its weights, and a program that checks both.
//!
//! The folder is built and the program run before [`export`] says that it is done.

use std::fmt::{Debug, Write as _};
use std::fs;
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mithril_compile::c::{CSource, FLAGS, c_type};
use mithril_ir::dim::Symbol;
use mithril_ir::graph::Role;
use mithril_ir::interp::Symbols;
use mithril_ir::{Code, DType, Error, Result, Tensor};
use sha2::{Digest, Sha256};

use super::Options;
use super::array::Address;
use super::cache::Cache;
use super::call::{Function, Interface, Packed, TensorSpec};
use super::compiler::Compiler;
use super::private::temporary_folder;
use super::program::{EntryPoint, Program};
use crate::interpreter::{Executable, Tensors};

mod accuracy;
mod arrays;
mod folder;
mod mesh;
mod ports;

pub use accuracy::allowed_distance;
use arrays::{array, packed_array};
use folder::{build_and_run, unwritable, write};
use mesh::{MeshExport, words_without};
pub use ports::Port;

/// Weights up to so many bytes are written into the C file.
const SMALL: usize = 32 << 10;

/// Before the first header: what `sched.h` needs to tell of processors.
const SYSTEM: &str =
    "#if defined __linux__ && !defined _GNU_SOURCE\n#define _GNU_SOURCE /* sched_getcpu */\n#endif\n";

/// Where values of inputs come from. Each is asked for when it is packed or written, and not kept, so that an export
/// needs no more memory than what is packed and the largest of them.
pub trait Values: Debug + Sync {
    /// The value of an input; `None`: there is none.
    fn value(&self, name: &str) -> Result<Option<Arc<Tensor>>>;
}

impl Values for Tensors {
    fn value(&self, name: &str) -> Result<Option<Arc<Tensor>>> {
        Ok(self.get(name).cloned())
    }
}

/// How a model is exported.
#[derive(Clone, Debug)]
pub struct Export<'a> {
    /// What it is called in the readme.
    pub title: &'a str,
    /// Values of all inputs by name; those of the data are recorded.
    pub values: &'a dyn Values,
    /// Outputs for these data, computed elsewhere.
    pub expected: Tensors,
    /// Which call gives these outputs, from 1 on: states change from call to call.
    pub calls: usize,
    /// Whether weights are written into the C file; by default where they are small.
    pub inside: Option<bool>,
}

/// What was exported.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The files.
    pub files: Vec<PathBuf>,
    /// Bytes of the weights.
    pub weight_bytes: usize,
    /// Bytes of the packed parameters.
    pub packed_bytes: usize,
    /// Bytes of scratch memory while they are packed.
    pub pack_bytes: usize,
    /// Bytes of scratch memory of a call on the threads of the program.
    pub arena_bytes: usize,
    /// What the checking program printed.
    pub check: String,
    /// The inputs and the outputs of `..._run`.
    pub ports: (Vec<Port>, Vec<Port>),
    /// Whether the weights file starts with the packed parameters.
    pub is_packed: bool,
}

impl Executable {
    /// Writes the model as a folder of C that needs nothing of Mithril, for the sizes of the data in `inputs`; builds it
    /// and compares what it computes for these with what the interpreter does.
    ///
    /// `inputs` hold parameters, states and data by name, as for [`Executable::evaluate`].
    ///
    /// ```no_run
    /// use std::path::Path;
    /// use mithril_ir::Tensor;
    /// use mithril_model::{FlattenOptions, zoo};
    /// use mithril_runtime::c::Options;
    /// use mithril_runtime::interpreter::{Executable, tensors};
    ///
    /// let model = zoo::build("resnet18", vec![], vec![])?;
    /// let shapes = vec![("input".into(), [1, 3, 224, 224].map(Into::into).to_vec())];
    /// let program = Executable::new(&model, &FlattenOptions { shapes, training: false, ..Default::default() })?;
    /// let params = program.initial(0)?;
    /// let data = tensors([("input", Tensor::of(&[1, 3, 224, 224], vec![0.5_f32; 3 * 224 * 224])?)]);
    /// let report = program.export_c(&[&params, &data], Options { pack: true, ..Options::default() }, Path::new("out"))?;
    /// println!("{}", report.check);
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    pub fn export_c(&self, inputs: &[&Tensors], options: Options, folder: &Path) -> Result<Report> {
        let expected = self.evaluate(inputs)?.outputs;
        let values: Tensors =
            inputs.iter().rev().flat_map(|map| map.iter().map(|(n, t)| (n.clone(), t.clone()))).collect();
        let program = Program::new(self.compiled().clone(), EntryPoint::Outputs, options);
        let symbols = program.symbols(values.iter().map(|(name, t)| (&**name, t.shape().to_vec())))?;
        let title = "A model in C, made by Mithril.";
        export(
            &program,
            &symbols,
            &Export { title, values: &values, expected, calls: 1, inside: None },
            folder,
        )
    }
}

/// Writes a model as C into a folder, builds it there, and compares what it computes with what is expected.
pub fn export(program: &Program, symbols: &Symbols, spec: &Export<'_>, folder: &Path) -> Result<Report> {
    let prefix = program.options().prefix.clone();
    // The code around it keeps each state in one place.
    let program = &program.in_place();
    let (graph, partition) = program.divided(symbols, &mut |_, _| {})?;
    let mesh = partition.map(|p| MeshExport::new(p, &program.tool(), spec)).transpose()?;
    let mesh = mesh.as_ref();
    let (source, interface) = program.source(symbols, &prefix)?;
    let weights =
        interface.inputs.iter().zip(&interface.roles).filter(|(_, r)| matches!(r, Role::Param | Role::State));
    let is_small = weights.map(|(b, _)| b.bytes()).sum::<usize>() <= SMALL;
    let is_inside = mesh.is_none() && spec.inside.unwrap_or(is_small);
    let packed_of = |values: &dyn Values| {
        if program.options().pack { pack(program, &source.c, &interface, values) } else { Ok(None) }
    };
    let first = mesh.map(|mesh| mesh.values(spec.values, 0));
    let packed = packed_of(first.as_ref().map_or(spec.values, |values| values))?;
    let named = program.options().batch.clone().map(Symbol::Named);
    let recorded = named.and_then(|name| symbols.get(&name)).map(|&rows| rows as usize);
    let interface = recorded.map_or_else(|| interface.clone(), |rows| interface.of_rows(rows));
    let tolerances = interface.results().iter().map(|b| allowed_distance(&graph, &b.name)).collect();
    let parts = Parts::new(&interface, is_inside, packed.as_ref(), &source.c, tolerances);
    let mut words = mesh.map_or_else(words_without, |mesh| mesh.words(&prefix));
    words.extend(parts.words(spec));
    words.push(("threads", program.options().threads().to_string()));
    words.push(("on_threads", threads_text(program.options().threads())));
    let header = source.h.clone() + &fill(include_str!("export/standalone.h"), &words);
    let code = parts.code(&source, &parts.inside_text(packed.as_ref(), spec.values)?, &words);
    words.push(("c_lines", code.lines().count().to_string()));
    words.push(("vectors", vectors(&source.c)));
    let mut files =
        vec![(format!("{prefix}.c"), code.into_bytes()), (format!("{prefix}.h"), header.into_bytes())];
    files.extend(parts.files(spec, mesh, &words)?);
    // What is built and run lies where nobody else could change it in between, wherever the files go.
    let work = temporary_folder()?;
    let mut paths = write(files, folder, work.path())?;
    let (ports, is_packed) = (parts.ports(), packed.is_some());
    if !parts.is_inside {
        paths.extend(parts.write_all_weights(spec.values, mesh, packed, &packed_of, folder)?);
    }
    let threads = program.options().threads();
    let compiler = Compiler::find(&program.tool())?;
    let check = build_and_run(&compiler, work.path(), folder, &prefix, threads, mesh)?;
    let mut report = Report { ports, is_packed, weight_bytes: parts.total, ..Report::of(check) };
    if let Some(error) = program.over_limit(report.packed_bytes, report.arena_bytes) {
        for path in &paths {
            let _ = fs::remove_file(path);
        }
        return Err(error.note("the folder was cleaned up"));
    }
    let rows = parts.memory_rows(report.arena_bytes, report.packed_bytes, report.pack_bytes, threads);
    words.push(("memory_rows", rows));
    let readme = folder.join("README.md");
    fs::write(&readme, fill(include_str!("export/README.in"), &words))
        .map_err(|e| unwritable(&readme, &e))?;
    paths.push(readme);
    report.files = paths;
    Ok(report)
}

/// The files of weights, and a rank that reads each.
fn weight_files(mesh: Option<&MeshExport>, prefix: &str) -> Vec<(String, usize)> {
    mesh.map_or_else(|| vec![(format!("{prefix}.weights"), 0)], |mesh| mesh.weight_files(prefix))
}

/// What follows from the parameters, as the weights file holds it; `None` if there is nothing to pack.
fn pack(program: &Program, code: &str, interface: &Interface, values: &dyn Values) -> Result<Option<Packed>> {
    let function = Function::new(&program.tool(), &Cache::default(), code, interface.clone(), 1)?;
    let Some(mut packing) = function.start_packing()? else { return Ok(None) };
    for part in &interface.packing {
        let read = part.iter().map(|&i| fitting(values, &interface.inputs[i]));
        let read = read.collect::<Result<Vec<_>>>()?;
        let mut addresses = vec![Address::none(); interface.inputs.len()];
        for (&i, tensor) in part.iter().zip(&read) {
            addresses[i] = Address::of_tensor(tensor);
        }
        function.pack_part(&mut packing, &addresses)?;
    }
    function.finish_packing(packing).map(Some)
}

fn threads_text(count: usize) -> String {
    if count == 1 { "one thread".into() } else { format!("{count} threads") }
}

/// Replaces `@name@` by words.
fn fill(template: &str, words: &[(&str, String)]) -> String {
    words.iter().fold(template.to_owned(), |text, (name, word)| text.replace(&format!("@{name}@"), word))
}

/// Files of templates.
fn filled(
    templates: Vec<(String, &str)>,
    words: &[(&str, String)],
) -> impl Iterator<Item = (String, Vec<u8>)> {
    templates.into_iter().map(|(name, template)| (name, fill(template, words).into_bytes()))
}

/// A number of bytes that the checking program printed behind a name; 0 if it did not.
fn bytes_of(printed: &str, name: &str) -> usize {
    let line = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix(" bytes"));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// What is written, before it becomes text.
struct Parts<'a> {
    interface: &'a Interface,
    /// Number of the input, number of the output that replaces it, offset.
    weights: Vec<(usize, Option<usize>, usize)>,
    total: usize,
    is_inside: bool,
    /// Bytes of what the weights file starts with.
    packed: Option<usize>,
    /// The code that reads it.
    code: &'a str,
    /// How far each result may be from the recorded one.
    allowed: Vec<f64>,
}

impl<'a> Parts<'a> {
    fn new(
        interface: &'a Interface,
        is_inside: bool,
        packed: Option<&Packed>,
        code: &'a str,
        allowed: Vec<f64>,
    ) -> Self {
        let packed = packed.map(|packed| packed.bytes().len());
        let mut weights = Vec::new();
        let mut total = packed.unwrap_or(0).next_multiple_of(64);
        for (i, (buffer, role)) in interface.inputs.iter().zip(&interface.roles).enumerate() {
            if !matches!(role, Role::Param | Role::State) {
                continue;
            }
            let results = interface.results().len();
            let updates = interface.outputs[results..].iter();
            let update =
                if *role == Role::State { updates.clone().position(|u| u.name == buffer.name) } else { None };
            if packed.is_some() && interface.fixed[i] && !interface.read[i] {
                continue;
            }
            weights.push((i, update.map(|n| results + n), total));
            total += buffer.bytes().next_multiple_of(64);
        }
        Self { interface, weights, total, is_inside, packed, code, allowed }
    }
    /// The model with its weights, if they are inside, and the code around it.
    fn code(&self, source: &CSource, inside: &str, words: &[(&str, String)]) -> String {
        let standalone = fill(&self.standalone(), words);
        let (title, model) = source.c.split_once('\n').unwrap_or(("", &source.c));
        let included = format!("#include \"{}.h\"\n", self.interface.prefix);
        let model = model.replacen(&source.declared, &included, 1);
        format!("{title}\n{SYSTEM}{model}{inside}{standalone}")
    }
    /// The files beside the model and its header: the program that checks it, what builds that, and what was recorded.
    fn files(
        &self,
        spec: &Export<'_>,
        mesh: Option<&MeshExport>,
        words: &[(&str, String)],
    ) -> Result<Vec<(String, Vec<u8>)>> {
        let prefix = &self.interface.prefix;
        let mut templates = vec![
            ("main.c".to_owned(), include_str!("export/main.c")),
            ("Makefile".to_owned(), include_str!("export/Makefile.in")),
            ("CMakeLists.txt".to_owned(), include_str!("export/CMakeLists.in")),
        ];
        let Some(mesh) = mesh else {
            let check = self.check(spec.values, &spec.expected)?;
            return Ok(filled(templates, words).chain([(format!("{prefix}.check"), check)]).collect());
        };
        templates.extend(MeshExport::sources(prefix));
        let checks = (0..mesh.ranks()).map(|rank| {
            let check = self.check(&mesh.values(spec.values, rank), &mesh.expected(&spec.expected, rank))?;
            Ok((format!("{prefix}.{rank}.check"), check))
        });
        filled(templates, words).map(Ok).chain(checks).collect()
    }
    /// Recorded data, then recorded outputs.
    fn check(&self, values: &dyn Values, expected: &Tensors) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for (_, buffer) in self.data() {
            bytes.extend(fitting(values, buffer)?.to_bytes());
        }
        for buffer in self.interface.results() {
            bytes.extend(fitting(expected, buffer)?.to_bytes());
        }
        Ok(bytes)
    }
    fn data(&self) -> Vec<(usize, &'a TensorSpec)> {
        let all = self.interface.inputs.iter().zip(&self.interface.roles).enumerate();
        all.filter(|(_, (_, r))| !matches!(r, Role::Param | Role::State)).map(|(i, (b, _))| (i, b)).collect()
    }
    /// A number that tells these weights from those of another model.
    fn mark(&self) -> u64 {
        let mut hash = Sha256::new();
        // The order of what is packed is that of this code.
        hash.update(if self.packed.is_some() { self.code } else { "" });
        for (i, _, offset) in &self.weights {
            let buffer = &self.interface.inputs[*i];
            hash.update(format!("{} {} {:?} {offset};", buffer.name, buffer.dtype, buffer.shape));
        }
        u64::from_le_bytes(hash.finalize()[..8].try_into().unwrap_or_default())
    }
    /// Writes the file of weights, or those of the ranks; the weights of one at a time are in memory.
    fn write_all_weights(
        &self,
        values: &dyn Values,
        mesh: Option<&MeshExport>,
        first: Option<Packed>,
        pack: &dyn Fn(&dyn Values) -> Result<Option<Packed>>,
        folder: &Path,
    ) -> Result<Vec<PathBuf>> {
        let mut first = Some(first);
        let files = weight_files(mesh, &self.interface.prefix).into_iter().map(|(name, rank)| {
            let own = mesh.map(|mesh| mesh.values(values, rank));
            let values: &dyn Values = own.as_ref().map_or(values, |values| values);
            let packed = first.take().map_or_else(|| pack(values), Ok)?;
            let path = folder.join(name);
            self.write_weights(packed.as_ref(), values, &path)?;
            Ok(path)
        });
        files.collect()
    }
    /// Writes the weights file, one value after the other.
    fn write_weights(&self, packed: Option<&Packed>, values: &dyn Values, path: &Path) -> Result<()> {
        let wrong = |e: io::Error| unwritable(path, &e);
        // Whoever has an old file open keeps it as it was.
        let _ = fs::remove_file(path);
        let mut file = BufWriter::new(fs::File::create(path).map_err(wrong)?);
        let mut at = 0;
        let mut write = |offset: usize, bytes: &[u8]| -> io::Result<()> {
            io::copy(&mut io::repeat(0).take((offset - at) as u64), &mut file)?;
            at = offset + bytes.len();
            file.write_all(bytes)
        };
        write(0, b"MITHRIL1").map_err(wrong)?;
        write(8, &self.mark().to_ne_bytes()).map_err(wrong)?;
        write(64, packed.map_or(&[], Packed::bytes)).map_err(wrong)?;
        for (i, _, offset) in &self.weights {
            let value = fitting(values, &self.interface.inputs[*i])?;
            write(64 + offset, Address::of_tensor(&value).bytes()).map_err(wrong)?;
        }
        write(64 + self.total, &[]).map_err(wrong)?;
        file.flush().map_err(wrong)
    }
    /// The code around the model; where the weights are inside, no function reads a file.
    fn standalone(&self) -> String {
        let text = include_str!("export/standalone.c");
        let mut pieces = text.split("@reading@");
        let (before, reading, after) =
            (pieces.next().unwrap_or(""), pieces.next().unwrap_or(""), pieces.next().unwrap_or(""));
        if self.is_inside { format!("{before}{after}") } else { format!("{before}{reading}{after}") }
    }
    /// The weights as arrays of C.
    fn inside_text(&self, packed: Option<&Packed>, values: &dyn Values) -> Result<String> {
        if !self.is_inside {
            return Ok(String::new());
        }
        let prefix = &self.interface.prefix;
        let mut text = String::from(
            "\n/* --- weights ----------------------------------------------------------------------------- */\n\
             #include <math.h>\n#include <stdint.h>\n\n",
        );
        if let Some(packed) = packed {
            text += &packed_array(prefix, packed.bytes());
        }
        let wrong = |_| Error::internal("text cannot be written");
        for (i, ..) in &self.weights {
            let buffer = &self.interface.inputs[*i];
            let (name, value) = (comment(&buffer.name), fitting(values, buffer)?);
            writeln!(text, "/* {name} {:?} */\n{}", buffer.shape, array(prefix, *i, &value))
                .map_err(wrong)?;
        }
        writeln!(text, "const void *const {prefix}_weights[{}] = {{", self.interface.inputs.len() + 1)
            .map_err(wrong)?;
        for i in 0..self.interface.inputs.len() {
            let is_weight = self.weights.iter().any(|(w, ..)| *w == i);
            let entry = if is_weight { format!("{prefix}_weight_{i}") } else { "0".into() };
            writeln!(text, "    {entry},").map_err(wrong)?;
        }
        text += "    0,\n};\n";
        Ok(text)
    }
    /// The words of the templates.
    fn words(&self, spec: &Export<'_>) -> Vec<(&'static str, String)> {
        // Words that hold others come first.
        let mut words = words_of_rows(self.interface.batch.as_ref().map(|(_, recorded)| *recorded));
        words.extend(self.words_of_weights());
        words.extend(self.words_of_arrays());
        let (first, others) = (FLAGS[0], FLAGS[1..].join(" ") + " -march=native -Wall -Wextra");
        let prefix = &self.interface.prefix;
        words.extend([
            ("flags", format!("{first} {others}")),
            ("cmake_flags", others),
            ("what", spec.title.to_owned()),
            ("calls", spec.calls.max(1).to_string()),
            ("prefix", prefix.clone()),
            ("PREFIX", prefix.to_uppercase()),
        ]);
        words
    }
    /// What the readme says of memory.
    fn memory_rows(&self, arena: usize, packed: usize, pack: usize, threads: usize) -> String {
        let call = format!("arena: scratch memory of a call on {}", threads_text(threads));
        let mut rows = vec![(&*call, arena)];
        if self.packed.is_some() {
            let place = if self.is_inside {
                ("weights, constants of the code", self.total)
            } else {
                ("`@prefix@.weights`, mapped: what calls read of it is in memory", 64 + self.total)
            };
            rows.insert(0, place);
            rows.insert(1, ("of these, packed parameters", packed));
        } else {
            let place =
                if self.is_inside { "weights, constants of the code" } else { "`@prefix@.weights`, mapped" };
            rows.insert(0, (place, self.total));
            rows.insert(1, ("packed parameters, made by `@prefix@_open`", packed));
        }
        rows.push(("scratch memory of `@prefix@_pack`, for who has weights of their own", pack));
        let rows = rows.into_iter().filter(|(_, bytes)| *bytes > 0);
        let rows = rows.map(|(what, bytes)| format!("| {what} | {bytes} |\n"));
        rows.collect::<String>().replace("@prefix@", &self.interface.prefix)
    }
    fn words_of_weights(&self) -> Vec<(&'static str, String)> {
        let row = |(i, update, offset): &(usize, Option<usize>, usize)| {
            let buffer = &self.interface.inputs[*i];
            let update = update.map_or_else(|| "-1".to_owned(), |n| n.to_string());
            format!("    {{{i}, {update}, {offset}, {}}}, /* {} */\n", buffer.bytes(), comment(&buffer.name))
        };
        let table: Vec<String> = self.weights.iter().map(row).collect();
        let listed = self.weights.iter().enumerate().map(|(n, (i, ..))| {
            let buffer = &self.interface.inputs[*i];
            format!("     {n}: {}, {} {:?}\n", comment(&buffer.name), buffer.dtype.name(), buffer.shape)
        });
        let listed: Vec<String> = listed.collect();
        let mut words = vec![("weight_table", table.concat()), ("weight_list", listed.concat())];
        let (packing, free_packed) = match (self.packed.is_some(), self.is_inside) {
            (true, true) => ("model->packed = @prefix@_packed;\n    int problem = 0;\n", ""),
            (true, false) => (
                "/* The file starts with the packed weights. */\n    model->packed = model->weights;\n    int problem = 0;\n",
                "",
            ),
            (false, _) => (
                "void *packed = @prefix@_allocate(@prefix@_packed_bytes());\n    \
                 void *scratch = @prefix@_allocate(@prefix@_pack_bytes());\n    \
                 int problem = packed && scratch ? 0 : ENOMEM;\n    \
                 if (!problem && @prefix@_pack(model->inputs, packed, scratch)) problem = EINVAL;\n    \
                 model->packed = packed;\n    \
                 free(scratch);\n",
                "    free((void *)model->packed);\n",
            ),
        };
        words.push(("packing", packing.to_owned()));
        words.push(("free_packed", free_packed.to_owned()));
        let has_words = self.is_inside && self.packed.is_some();
        words.push(("packed_type", if has_words { "#include <stdint.h>\n\n" } else { "" }.to_owned()));
        words.extend(self.words_of_places());
        // States are changed where they lie, in a copy of their pages.
        let changes = self.weights.iter().any(|(_, update, ..)| update.is_some());
        let protection = if changes { "PROT_READ | PROT_WRITE" } else { "PROT_READ" };
        words.push(("protection", protection.to_owned()));
        words.push(("weight_mark", self.mark().to_string()));
        words.push(("weight_bytes", self.total.to_string()));
        words.push(("weight_count", self.weights.len().to_string()));
        words
    }
    /// The words that say where the weights are: inside of the C file, or in a file of their own.
    fn words_of_places(&self) -> [(&'static str, String); 9] {
        let texts = if self.is_inside {
            [
                ("weights_row", ""),
                ("read", "((void)weights, 0)"),
                (
                    "copied",
                    "/* The weights in this file are constants. */\n        \
                     model->copies[i] = @prefix@_allocate(weight->bytes);\n        \
                     if (!model->copies[i]) return ENOMEM;\n        \
                     memcpy(model->copies[i], model->inputs[weight->input], weight->bytes);\n        \
                     model->inputs[weight->input] = model->copies[i];\n        ",
                ),
                ("weight_address", "@prefix@_weights[weight->input]"),
                ("release", ""),
                ("weights_note", "The weights are in the C file: `weights` is NULL."),
                ("weights_path", "NULL"),
                (
                    "inside_declaration",
                    "/* The parameters and states among the inputs of @prefix@_run; NULL for data, and for what is packed. */\n\
                 extern const void *const @prefix@_weights[];\n@inside_packed@\n",
                ),
                (
                    "inside_packed",
                    if self.packed.is_some() {
                        "/* The packed parameters, for the argument `packed` of @prefix@_run: constants, so that @prefix@_pack is \
                         not needed. */\nextern const uint32_t @prefix@_packed[];\n"
                    } else {
                        ""
                    },
                ),
            ]
        } else {
            [
                ("weights_row", "| `@prefix@.weights` | its weights |\n"),
                ("read", "@prefix@_read(model, weights)"),
                ("copied", ""),
                ("weight_address", "model->weights + weight->offset"),
                ("release", "    @prefix@_release(model->weights);\n"),
                (
                    "weights_note",
                    "`weights` is the path of @prefix@.weights, which must not change while the model is open; EINVAL: it belongs to \
                     another\n   version of this code.",
                ),
                ("weights_path", "\"@prefix@.weights\""),
                ("inside_declaration", ""),
                ("inside_packed", ""),
            ]
        };
        texts.map(|(word, text)| (word, text.to_owned()))
    }
    fn words_of_arrays(&self) -> Vec<(&'static str, String)> {
        let data = self.data();
        let numbers: Vec<String> = data.iter().map(|(i, _)| format!("{i}, ")).collect();
        let upper = self.interface.prefix.to_uppercase();
        let place = |(n, (i, buffer)): (usize, &(usize, &TensorSpec))| {
            format!("#define {upper}_DATA_{n} {i} /* {} */\n", comment(&buffer.name))
        };
        let places: Vec<String> = data.iter().enumerate().map(place).collect();
        let data: Vec<&TensorSpec> = data.into_iter().map(|(_, buffer)| buffer).collect();
        let results: Vec<&TensorSpec> = self.interface.results().iter().collect();
        let texts = |buffers: &[&TensorSpec], text: fn(&TensorSpec) -> String| {
            buffers.iter().map(|b| text(b)).collect::<Vec<_>>().concat()
        };
        let list = |b: &TensorSpec| format!("     {}: {} {:?}\n", comment(&b.name), b.dtype.name(), b.shape);
        let row = |b: &TensorSpec| format!("| {} | {} | {:?} |\n", comment(&b.name), b.dtype.name(), b.shape);
        let rows = |buffers| "| name | dtype | shape |\n|---|---|---|\n".to_owned() + &texts(buffers, row);
        let names =
            |n: usize, what: &str| (0..n).map(|i| format!("{what}{i}")).collect::<Vec<_>>().join(", ");
        vec![
            ("data_count", data.len().to_string()),
            ("data_table", numbers.concat()),
            ("data_places", places.concat()),
            ("data_list", texts(&data, list)),
            ("data_rows", rows(&data)),
            ("data_tensors", texts(&data, tensor_row)),
            ("data_names", names(data.len(), "data")),
            ("arrays", declared(&data, "data") + &declared(&results, "output")),
            ("output_list", texts(&results, list)),
            ("output_rows", rows(&results)),
            ("result_tensors", texts(&results, tensor_row)),
            ("allowed", self.allowed.iter().map(|d| format!("{d:e}, ")).collect::<Vec<_>>().concat()),
            ("output_names", names(results.len(), "output")),
            ("results", results.len().to_string()),
            ("inputs", self.interface.inputs.len().to_string()),
            ("outputs", self.interface.outputs.len().to_string()),
        ]
    }
}

/// What differs where the number of rows is an argument; `recorded` of them are checked.
fn words_of_rows(recorded: Option<usize>) -> Vec<(&'static str, String)> {
    let Some(recorded) = recorded else {
        let texts = ["", "", "@prefix@_arena_bytes", "@prefix@_call(model, inputs, outputs)"];
        return ["batch_declaration", "batch_call", "arena_function", "checked_call"]
            .into_iter()
            .zip(texts.map(String::from))
            .collect();
    };
    let declaration = "\n/* The same for any number of rows: data and outputs hold so many. The sizes above are those of the \
                       recorded data. */\n\
                       int @prefix@_call_batch(@prefix@_model *model, const void *const data[], void *const outputs[], \
                       int64_t batch);\n";
    let call = "\nint @prefix@_call_batch(@prefix@_model *model, const void *const data[], void *const outputs[], int64_t \
                batch) {\n    for (int i = 0; i < @prefix@_DATA_COUNT; i++) model->inputs[@prefix@_data_table[i]] = data[i];\n    \
                return @prefix@_run_batch(model->inputs, outputs, batch, model->packed, model->arena, model->pool);\n}\n";
    vec![
        ("batch_declaration", declaration.to_owned()),
        ("batch_call", call.to_owned()),
        ("arena_function", "@prefix@_batch_arena_bytes".to_owned()),
        ("checked_call", format!("@prefix@_call_batch(model, inputs, outputs, {recorded})")),
    ]
}

/// The value of a buffer.
fn fitting(values: &dyn Values, buffer: &TensorSpec) -> Result<Arc<Tensor>> {
    let name = &buffer.name;
    let value = values
        .value(name)?
        .ok_or_else(|| Error::new(Code::BadParameter, format!("there is no value for `{name}`")))?;
    if value.dtype() != buffer.dtype || value.shape() != buffer.shape {
        let text = format!("`{name}` is {} of shape {:?}", value.dtype(), value.shape());
        return Err(Error::new(Code::BadParameter, text)
            .help(format!("it must be {} of shape {:?}", buffer.dtype, buffer.shape)));
    }
    Ok(value)
}

/// A name inside a comment of C or a table, where it cannot end either.
fn comment(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || "._-[]".contains(c) { c } else { '_' }).collect()
}

fn tensor_row(b: &TensorSpec) -> String {
    let kind = match b.dtype {
        DType::F32 => 'f',
        DType::F64 => 'd',
        DType::F16 => 'h',
        DType::BF16 => 'b',
        _ => 'i',
    };
    let count: usize = b.shape.iter().product();
    format!("    {{\"{}\", '{kind}', {count}, {}}},\n", comment(&b.name), b.dtype.size())
}

/// Arrays for tensors, in lines of C.
fn declared(buffers: &[&TensorSpec], what: &str) -> String {
    let line = |(i, b): (usize, &&TensorSpec)| {
        let count = b.shape.iter().product::<usize>().max(1);
        format!("static {} {what}{i}[{count}]; /* {} */\n", c_type(b.dtype), comment(&b.name))
    };
    buffers.iter().enumerate().map(line).collect()
}

/// Which processors the kernels of a C file are shaped for.
fn vectors(code: &str) -> String {
    let lanes = code.split_once("#define MITHRIL_VECTOR ").and_then(|(_, rest)| rest.split(' ').next());
    match lanes {
        Some("1") => "It is plain C, without vectors.".to_owned(),
        Some(lanes) => format!(
            "Its kernels are shaped for\nprocessors whose vectors hold {lanes} floats; on others it runs too, slower: export it \
             again with other `lanes` for them."
        ),
        None => String::new(),
    }
}
