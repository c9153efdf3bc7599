//! What a checkpoint says about itself: values by name, of the kinds that GGUF has.

/// Declares [`Value`] and [`List`]: one variant per kind, with its type and its number in GGUF.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident($inner:ty) = $id:literal;)*) => {
        /// One value. Files of safetensors have texts alone.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Value {
            $($(#[$doc])* $name($inner),)*
            /// Several of one kind.
            List(List),
        }
        /// Values of one kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum List {
            $($(#[$doc])* $name(Vec<$inner>),)*
            /// Lists.
            List(Vec<List>),
        }
        impl Value {
            /// The number of its kind in GGUF.
            pub(super) fn kind(&self) -> u32 {
                match self { $(Self::$name(_) => $id,)* Self::List(_) => LIST }
            }
        }
        impl List {
            /// The number of the kind of its items in GGUF.
            pub(super) fn kind(&self) -> u32 {
                match self { $(Self::$name(_) => $id,)* Self::List(_) => LIST }
            }
            /// Number of items.
            pub fn len(&self) -> usize {
                match self { $(Self::$name(items) => items.len(),)* Self::List(items) => items.len() }
            }
            /// Whether there is none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }
    };
}

/// The number of lists in GGUF.
pub(super) const LIST: u32 = 9;

kinds! {
    /// Unsigned, 8 bits.
    U8(u8) = 0;
    /// Signed, 8 bits.
    I8(i8) = 1;
    /// Unsigned, 16 bits.
    U16(u16) = 2;
    /// Signed, 16 bits.
    I16(i16) = 3;
    /// Unsigned, 32 bits.
    U32(u32) = 4;
    /// Signed, 32 bits.
    I32(i32) = 5;
    /// A float, 32 bits.
    F32(f32) = 6;
    /// A boolean.
    Bool(bool) = 7;
    /// A text.
    Text(String) = 8;
    /// Unsigned, 64 bits.
    U64(u64) = 10;
    /// Signed, 64 bits.
    I64(i64) = 11;
    /// A float, 64 bits.
    F64(f64) = 12;
}

impl Value {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
    /// The number, if it is an integer that is not negative and can be a size.
    pub fn size(&self) -> Option<usize> {
        match *self {
            Self::U8(n) => Some(n.into()),
            Self::U16(n) => Some(n.into()),
            Self::U32(n) => usize::try_from(n).ok(),
            Self::U64(n) => usize::try_from(n).ok(),
            Self::I8(n) => usize::try_from(n).ok(),
            Self::I16(n) => usize::try_from(n).ok(),
            Self::I32(n) => usize::try_from(n).ok(),
            Self::I64(n) => usize::try_from(n).ok(),
            _ => None,
        }
    }
}
