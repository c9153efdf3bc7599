//! A training over epochs: batches in random order, validation, early stopping, and a file to go on from.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use mithril_ir::Tensor;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::Role;
use mithril_ir::random::words;

use super::{TrainingStep, unknown};
use crate::interpreter::Tensors;
use crate::weights::{Checkpoint, save};

/// How [`TrainingStep::fit`] goes through the data.
///
/// ```
/// use mithril_runtime::training::FitOptions;
/// let options = FitOptions { epochs: 10, batch_size: 64, ..FitOptions::default() };
/// assert!(options.shuffle && options.drop_last && options.patience.is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitOptions {
    /// How often all examples are used. Default: 1.
    pub epochs: usize,
    /// Examples of a batch. Default: 32.
    pub batch_size: usize,
    /// Whether each epoch has an order of its own, which depends on `seed` and the number of the epoch. Default: true.
    pub shuffle: bool,
    /// Whether the examples at the end of an epoch that fill no batch are left out; else they are a smaller batch, for which
    /// the axis of examples has to be a symbol. Default: true.
    pub drop_last: bool,
    /// The seed of the order. Default: 0.
    pub seed: u64,
    /// Stop after so many epochs in a row without a lower loss: that of the validation data if there are any.
    pub patience: Option<usize>,
    /// A file (safetensors) that is written after each epoch. If it exists, the training goes on from it, with the same
    /// results as if it had not been interrupted.
    pub checkpoint: Option<PathBuf>,
}

impl Default for FitOptions {
    fn default() -> Self {
        Self {
            epochs: 1,
            batch_size: 32,
            shuffle: true,
            drop_last: true,
            seed: 0,
            patience: None,
            checkpoint: None,
        }
    }
}

/// What an epoch gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// Its number, from 1 on.
    pub number: usize,
    /// The mean of the loss over its examples, each as it was before the step on its batch.
    pub loss: f64,
    /// The mean of the loss over the validation data, after the epoch and without training (no dropout, running
    /// statistics), if there are any.
    pub validation_loss: Option<f64>,
    /// The learning rate at its end.
    pub learning_rate: f64,
    /// How long it took, validation included.
    pub seconds: f64,
}

impl Epoch {
    /// What early stopping compares.
    fn watched(&self) -> f64 {
        self.validation_loss.unwrap_or(self.loss)
    }
    /// A line of a file: the fields in order, `-` for one that is missing.
    fn line(&self) -> String {
        let validation_loss = self.validation_loss.map_or("-".to_owned(), |loss| loss.to_string());
        let Self { number, loss, learning_rate, seconds, .. } = self;
        format!("{number} {loss} {validation_loss} {learning_rate} {seconds}")
    }
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [number, loss, validation_loss, learning_rate, seconds] = words[..] else { return None };
        let validation_loss = match validation_loss {
            "-" => None,
            loss => Some(loss.parse().ok()?),
        };
        Some(Self {
            number: number.parse().ok()?,
            loss: loss.parse().ok()?,
            validation_loss,
            learning_rate: learning_rate.parse().ok()?,
            seconds: seconds.parse().ok()?,
        })
    }
}

/// Keys of the metadata of a file.
const SETTINGS: &str = "mithril.fit.settings";
const EPOCHS: &str = "mithril.fit.epochs";
/// The learning rate of the next step, which schedules may have set after the last epoch.
const RATE: &str = "mithril.fit.learning_rate";

impl TrainingStep {
    /// Trains for several epochs on `data`, whose examples lie along the first axis of each tensor (scalars belong to all
    /// examples). After each epoch `on_epoch` is called, which may change the learning rate; its error ends the training.
    ///
    /// Returns all epochs, those included that were read from [`FitOptions::checkpoint`].
    ///
    /// ```
    /// use mithril_ir::{Place, Tensor};
    /// use mithril_model::{FlattenOptions, Model, layers};
    /// use mithril_runtime::interpreter::tensors;
    /// use mithril_runtime::training::{FitOptions, Optimizer, TrainingStep};
    ///
    /// let mut model = Model::new();
    /// model.extend(&layers::linear(1, true)?, [("input", "input"), ("output", "output")], Place::default())?;
    /// let loss = layers::build("MSELoss", vec![], vec![])?;
    /// model.extend(&loss, [("input", "output"), ("target", "target"), ("output", "loss")], Place::default())?;
    /// let shape = || vec!["batch".into(), 1.into()];
    /// let shapes = vec![("input".into(), shape()), ("target".into(), shape())];
    /// let options = FlattenOptions { shapes, ..FlattenOptions::default() };
    /// let mut training = TrainingStep::new(&model, &options, "loss", &Optimizer::new("Adam", 0.1)?, 0)?;
    ///
    /// let inputs: Vec<f32> = (0..64).map(|i| i as f32 / 32.0 - 1.0).collect();
    /// let targets = inputs.iter().map(|x| 3.0 * x - 1.0).collect();
    /// let data = tensors([("input", Tensor::of(&[64, 1], inputs)?), ("target", Tensor::of(&[64, 1], targets)?)]);
    ///
    /// let options = FitOptions { epochs: 60, batch_size: 16, ..FitOptions::default() };
    /// let epochs = training.fit(&data, None, &options, |training, epoch| {
    ///     training.set_learning_rate(0.1 * 0.97_f64.powi(epoch.number as i32))
    /// })?;
    /// assert!(epochs.len() == 60 && epochs[59].loss < 1e-3);
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// Options without meaning; data that are not inputs of the model or differ in their number of examples; a file that
    /// was written by another training; and what [`TrainingStep::step`] reports. Epochs before the error stay.
    pub fn fit(
        &mut self,
        data: &Tensors,
        validation: Option<&Tensors>,
        options: &FitOptions,
        mut on_epoch: impl FnMut(&mut Self, &Epoch) -> Result<()>,
    ) -> Result<Vec<Epoch>> {
        check(options)?;
        let examples = self.examples(data, "data")?;
        if options.drop_last && examples < options.batch_size {
            let message =
                format!("the data have {examples} examples, but a batch has {}", options.batch_size);
            return Err(Error::new(Code::BadArgument, message)
                .help(format!("set batch_size to {examples} or less, or drop_last to false")));
        }
        let count = |v| Ok((v, self.examples(v, "validation data")?));
        let validation = validation.map(count).transpose()?;
        let settings = settings(data, options);
        let mut epochs = match &options.checkpoint {
            Some(path) if path.exists() => self.resume(path, &settings)?,
            _ => Vec::new(),
        };
        while epochs.len() < options.epochs && !is_over(&epochs, options.patience) {
            let start = Instant::now();
            let number = epochs.len() + 1;
            let loss = self.run_epoch(data, examples, number, options)?;
            let validation_loss =
                validation.map(|(v, n)| self.loss_of(v, n, options.batch_size)).transpose()?;
            let learning_rate = self.learning_rate();
            let seconds = start.elapsed().as_secs_f64();
            epochs.push(Epoch { number, loss, validation_loss, learning_rate, seconds });
            on_epoch(self, &epochs[number - 1])?;
            if let Some(path) = &options.checkpoint {
                self.save(path, &settings, &epochs)?;
            }
        }
        Ok(epochs)
    }

    /// Steps on all batches of an epoch; the mean loss of an example.
    fn run_epoch(
        &mut self,
        data: &Tensors,
        examples: usize,
        number: usize,
        options: &FitOptions,
    ) -> Result<f64> {
        let order = order(examples, number, options);
        let used =
            if options.drop_last { examples / options.batch_size * options.batch_size } else { examples };
        let (mut total, mut count) = (0.0, 0);
        for rows in order[..used].chunks(options.batch_size) {
            let outputs = self.step(&batch(data, rows))?;
            total += self.mean_loss(&outputs)? * rows.len() as f64;
            count += rows.len();
        }
        Ok(total / count as f64)
    }

    /// The mean loss of an example with the parameters as they are, and without training.
    fn loss_of(&self, data: &Tensors, examples: usize, batch_size: usize) -> Result<f64> {
        let rows: Vec<usize> = (0..examples).collect();
        let mut total = 0.0;
        for rows in rows.chunks(batch_size) {
            total += self.mean_loss(&self.evaluate(&batch(data, rows))?)? * rows.len() as f64;
        }
        Ok(total / examples as f64)
    }

    fn mean_loss(&self, outputs: &Tensors) -> Result<f64> {
        let loss = outputs.get(&*self.loss).ok_or_else(|| Error::internal("the loss was not computed"))?;
        let values = loss.to_f64s();
        Ok(values.iter().sum::<f64>() / values.len() as f64)
    }

    /// How many examples there are, if these are data of the model.
    fn examples(&self, data: &Tensors, what: &str) -> Result<usize> {
        let known = || {
            let data = self.compiled.inputs.iter().filter(|i| i.role == Role::Data);
            data.map(|i| &*i.name).filter(|name| *name != "learning_rate")
        };
        for name in data.keys() {
            if !known().any(|own| own == &**name) {
                return Err(unknown("input", name, known()));
            }
        }
        let mut sizes = data.iter().filter_map(|(name, t)| Some((name, *t.shape().first()?)));
        let Some((first, examples)) = sizes.next().filter(|(_, n)| *n > 0) else {
            let names = known().collect::<Vec<_>>().join(", ");
            return Err(Error::new(Code::BadArgument, format!("the {what} hold no examples"))
                .help(format!("give tensors of one or more rows for: {names}")));
        };
        if let Some((name, other)) = sizes.find(|(_, n)| *n != examples) {
            let message = format!("`{first}` of the {what} holds {examples} examples, but `{name}` {other}");
            return Err(Error::new(Code::BadArgument, message)
                .help("examples lie along the first axis of each tensor"));
        }
        Ok(examples)
    }

    /// Writes what a training goes on from; the file is replaced as a whole.
    fn save(&self, path: &Path, settings: &str, epochs: &[Epoch]) -> Result<()> {
        let tensors: Vec<(&str, &Tensor)> = self.state.iter().map(|(name, t)| (&**name, &**t)).collect();
        let epochs = epochs.iter().map(Epoch::line).collect::<Vec<_>>().join("\n");
        let rate = self.rate.to_string();
        save(path, &tensors, &[(SETTINGS, settings), (EPOCHS, &epochs), (RATE, &rate)])
    }

    /// Goes on from a file: its epochs.
    fn resume(&mut self, path: &Path, settings: &str) -> Result<Vec<Epoch>> {
        let file = Checkpoint::open(path)?;
        let foreign = || {
            let message = format!("{} was not written by a training", path.display());
            Error::new(Code::BadFile, message).help("give a path that does not exist yet")
        };
        let read = |key: &str| {
            let entry = file.metadata().find(|(own, _)| *own == key).and_then(|(_, value)| value.text());
            entry.ok_or_else(foreign)
        };
        let epochs: Option<Vec<Epoch>> = read(EPOCHS)?.lines().map(Epoch::parse).collect();
        let (epochs, rate) = (epochs.ok_or_else(foreign)?, read(RATE)?.parse().map_err(|_| foreign())?);
        let known = read(SETTINGS)?;
        if known != settings {
            let message = format!("{} was written with other options or data", path.display());
            return Err(Error::new(Code::ConflictingOptions, message)
                .note(format!("there: {known}"))
                .note(format!("here: {settings}"))
                .help("use the same options and data, or give a path that does not exist yet"));
        }
        if let Some(name) = self.state.keys().find(|name| file.get(name).is_none()) {
            let message = format!("{} has no `{name}`", path.display());
            return Err(Error::new(Code::BadParameter, message).help("check which model it comes from"));
        }
        let state: Tensors = file
            .iter()
            .map(|(name, weight)| Ok((Arc::from(name), Arc::new(weight.to_tensor()?))))
            .collect::<Result<_>>()?;
        self.load(&state)?;
        self.set_learning_rate(rate)?;
        Ok(epochs)
    }
}

/// What results depend on besides the model and the values of the data.
fn settings(data: &Tensors, options: &FitOptions) -> String {
    let FitOptions { batch_size, shuffle, drop_last, seed, .. } = options;
    let tensors: Vec<String> =
        data.iter().map(|(name, t)| format!("{name} {} {:?}", t.dtype(), t.shape())).collect();
    format!(
        "batch_size {batch_size}, shuffle {shuffle}, drop_last {drop_last}, seed {seed}, {}",
        tensors.join(", ")
    )
}

fn check(options: &FitOptions) -> Result<()> {
    let counts = [
        ("epochs", Some(options.epochs)),
        ("batch_size", Some(options.batch_size)),
        ("patience", options.patience),
    ];
    match counts.iter().find(|(_, n)| *n == Some(0)) {
        None => Ok(()),
        Some((name, _)) => {
            Err(Error::new(Code::BadArgument, format!("{name} is 0")).help("it must be 1 or more"))
        }
    }
}

/// Whether the last `patience` epochs brought nothing; NaN is worse than any number.
fn is_over(epochs: &[Epoch], patience: Option<usize>) -> bool {
    let watched = |e: &Epoch| if e.watched().is_nan() { f64::INFINITY } else { e.watched() };
    let best = epochs.iter().enumerate().min_by(|(_, a), (_, b)| watched(a).total_cmp(&watched(b)));
    match (best, patience) {
        (Some((best, _)), Some(patience)) => epochs.len() - 1 - best >= patience,
        _ => false,
    }
}

/// The examples in the order of an epoch (Fisher and Yates, from the words of Philox).
fn order(examples: usize, number: usize, options: &FitOptions) -> Vec<usize> {
    let mut order: Vec<usize> = (0..examples).collect();
    if options.shuffle {
        let mut words = words([options.seed as i64, number as i64]);
        for i in (1..examples).rev() {
            let high = u64::from(words.next().unwrap_or_default()) << 32;
            let word = high | u64::from(words.next().unwrap_or_default());
            order.swap(i, ((u128::from(word) * (i as u128 + 1)) >> 64) as usize);
        }
    }
    order
}

/// These examples; scalars belong to all.
fn batch(data: &Tensors, rows: &[usize]) -> Tensors {
    let cut = |t: &Arc<Tensor>| {
        let Some((&examples, rest)) = t.shape().split_first() else { return t.clone() };
        let shape: Vec<usize> = std::iter::once(rows.len()).chain(rest.iter().copied()).collect();
        let each = t.len() / examples.max(1);
        Arc::new(t.select(&shape, rows.iter().flat_map(|row| row * each..(row + 1) * each)))
    };
    data.iter().map(|(name, t)| (name.clone(), cut(t))).collect()
}
