//! Kernels as programs name them: their calls, what each argument is, and the memory that they need.

/// An argument of a kernel's function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// This thread's number, from 0.
    Thread,
    /// How many threads make the call.
    Threads,
    /// The first input (the left matrix, the image).
    A,
    /// The second input as it is (the right matrix, the weights).
    B,
    /// The second input, packed by `pack`.
    Packed,
    /// The second input, which an earlier kernel of the same kind has packed.
    PackedB,
    /// What to prefetch while the last weights are used: the packed weights that the next kernel starts with, see
    /// [`panel_start`](Kernel::panel_start). Any address is allowed: it is not dereferenced.
    NextWeights,
    /// The result.
    Out,
    /// An operand of the epilogue.
    Operand(usize),
    /// Scratch memory that all threads see.
    Shared,
    /// The same from this byte on.
    SharedAt(usize),
    /// Scratch memory of this thread.
    Scratch,
}

/// A call of a kernel's function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The function's name.
    pub function: String,
    /// Its arguments, in order.
    pub arguments: Vec<Argument>,
}

impl Call {
    /// The call as a C statement, given how each argument is written.
    pub fn text(&self, write: impl Fn(&Argument) -> String) -> String {
        let arguments: Vec<String> = self.arguments.iter().map(write).collect();
        format!("{}({});", self.function, arguments.join(", "))
    }
}

/// The panel of packed weights that each thread reads first: the threads divide the units of work evenly, and the panel of
/// unit `n` is `n % panels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PanelStart {
    /// Units of work; 0 if all threads start with the first panel.
    pub units: usize,
    /// Panels.
    pub panels: usize,
    /// Bytes of a panel.
    pub bytes: usize,
}

impl PanelStart {
    /// The offset of a thread from the start of the weights, as C that begins with ` + `; empty if it is 0 for all.
    pub fn text(&self, [thread, threads]: [&str; 2]) -> String {
        let Self { units, panels, bytes } = self;
        match units {
            0 => String::new(),
            _ if units == panels => format!(" + {units}L * {thread} / {threads} * {bytes}"),
            _ => format!(" + {units}L * {thread} / {threads} % {panels} * {bytes}"),
        }
    }
}

/// A kernel whose functions are in the library: what to call, and the memory that it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Packs the weights; none where the kernel reads them as they are or packs them at every call.
    pub pack: Option<Call>,
    /// Bytes that `pack` writes.
    pub packed_bytes: usize,
    /// The panel that each thread reads first, if that is known.
    pub panel_start: Option<Box<PanelStart>>,
    /// The calls: those of a phase in any order, with a barrier between phases.
    pub phases: Vec<Vec<Call>>,
    /// Scratch bytes seen by all threads.
    pub shared_bytes: usize,
    /// Scratch bytes of each thread, a multiple of 64.
    pub scratch_bytes: usize,
}
