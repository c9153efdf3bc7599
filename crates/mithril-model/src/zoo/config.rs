//! Reading the `config.json` beside a published checkpoint.

use mithril_ir::{Code, Error, Result};
use serde_json::{Map, Value};

/// The entries of a configuration.
#[derive(Clone, Debug)]
pub struct Config<'a>(&'a Map<String, Value>);

/// The object that a text holds.
pub(super) fn parse(json: &str) -> Result<Map<String, Value>> {
    let bad = |reason: String| {
        Error::new(Code::BadArgument, format!("the configuration cannot be read: {reason}"))
            .help("it is the text of a config.json: one JSON object")
    };
    match serde_json::from_str(json) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(bad("it is not an object".into())),
        Err(error) => Err(bad(error.to_string())),
    }
}

impl<'a> Config<'a> {
    /// The entries of an object.
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self(map)
    }
    /// An entry that is there and not null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }
    /// Whether there is an entry, be it null.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
    /// An object inside.
    pub fn inside(&self, name: &str) -> Result<Config<'a>> {
        match self.get(name) {
            Some(Value::Object(map)) => Ok(Config(map)),
            _ => Err(self.bad(name, "an object")),
        }
    }
    /// A text.
    pub fn text(&self, name: &str) -> Result<&'a str> {
        self.get(name).and_then(Value::as_str).ok_or_else(|| self.bad(name, "a text"))
    }
    /// An integer.
    pub fn int(&self, name: &str) -> Result<i64> {
        self.get(name).and_then(Value::as_i64).ok_or_else(|| self.bad(name, "an integer"))
    }
    /// An integer, or what holds when there is none.
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        if self.get(name).is_none() { Ok(default) } else { self.int(name) }
    }
    /// A number.
    pub fn float(&self, name: &str) -> Result<f64> {
        self.get(name).and_then(Value::as_f64).ok_or_else(|| self.bad(name, "a number"))
    }
    /// A number, or what holds when there is none.
    pub fn float_or(&self, name: &str, default: f64) -> Result<f64> {
        if self.get(name).is_none() { Ok(default) } else { self.float(name) }
    }
    /// A boolean, or what holds when there is none.
    pub fn bool_or(&self, name: &str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.bad(name, "true or false")),
        }
    }
    /// Integers.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>> {
        let items = self.get(name).and_then(Value::as_array);
        items
            .and_then(|items| items.iter().map(Value::as_i64).collect())
            .ok_or_else(|| self.bad(name, "a list of integers"))
    }
    /// Refuses an option that the model of the zoo does not have: it would compute something else.
    pub fn only(&self, name: &str, accepted: &[&str], default: &str) -> Result<()> {
        let value = if self.get(name).is_none() { default } else { self.text(name)? };
        if accepted.contains(&value) { Ok(()) } else { Err(self.bad(name, &accepted.join(" or "))) }
    }
    /// The number of classes: the length of `id2label`, `num_labels`, or what holds when neither is there.
    pub fn labels(&self, default: i64) -> Result<i64> {
        match self.get("id2label") {
            Some(Value::Object(map)) => Ok(map.len() as i64),
            _ => self.int_or("num_labels", default),
        }
    }
    /// The error that an entry is not what it must be.
    #[cold]
    pub fn bad(&self, name: &str, expected: &str) -> Error {
        let actual = self.get(name).map_or("missing".to_owned(), |value| {
            let text: String = value.to_string().chars().take(60).collect();
            text
        });
        Error::new(Code::BadArgument, format!("`{name}` of the configuration is {actual}"))
            .help(format!("it must be {expected}"))
    }
}
