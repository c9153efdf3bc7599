//! Kernels as programs name them: their calls, what each argument is, and the memory that they need.

/// What a kernel's call is given.
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
    /// The second input as `pack` has left it.
    Packed,
    /// What to ask for while the last weights are used: those with which the next kernel starts, as its
    /// [`first`](Kernel::first) says. Any address will do; it is not read.
    Ahead,
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

/// Where each thread starts to read packed weights: threads share so many units of work evenly, and units go through so
/// many panels again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct First {
    /// Units of work; 0 if all threads start with the first panel.
    pub units: usize,
    /// Panels.
    pub panels: usize,
    /// Bytes of a panel.
    pub bytes: usize,
}

impl First {
    /// What a thread adds to the start of the weights, as C that begins with ` + `; nothing if it is 0 for all.
    pub fn text(&self, [thread, threads]: [&str; 2]) -> String {
        let Self { units, panels, bytes } = self;
        match units {
            0 => String::new(),
            _ if units == panels => format!(" + {units}L * {thread} / {threads} * {bytes}"),
            _ => format!(" + {units}L * {thread} / {threads} % {panels} * {bytes}"),
        }
    }
}

/// A kernel that is in the library: what to call, and what memory it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Brings the weights into the kernel's order; none where it reads them as they are or packs them itself.
    pub pack: Option<Call>,
    /// Bytes that `pack` writes.
    pub packed_bytes: usize,
    /// Where in them each thread starts, if that is known.
    pub first: Option<Box<First>>,
    /// The calls: those of a phase in any order, with a barrier between two phases.
    pub phases: Vec<Vec<Call>>,
    /// Scratch bytes seen by all threads.
    pub shared_bytes: usize,
    /// Scratch bytes of each thread, a multiple of 64.
    pub scratch_bytes: usize,
}
