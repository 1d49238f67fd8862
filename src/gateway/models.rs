//! Loads what the pools name, tokenizers and templates above all, before anything is served.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use super::identity;
use crate::config::{Config, Pool};
use crate::prompt::model::Model;
use crate::replicas::Files;
use crate::runtime::log::Log;

/// Different models that one gateway loads: each costs every core some 25 MB of tables.
const MODELS_MAX: usize = 16;
/// Bytes that their shared tables may take.
const MODEL_BYTES_MAX: usize = 4 << 30;

/// Files of a folder that are looked at for changes.
const FILES_MAX: usize = 256;

/// What a pool names: its folder, and a template in the place of the folder's own.
type Named = (String, Option<String>);

fn named(pool: &Pool) -> Option<Named> {
    Some((pool.tokenizer.clone()?, pool.chat_template.clone()))
}

/// The models that were loaded, with what their files looked like then.
#[derive(Default)]
pub(super) struct Loaded(HashMap<Named, (u64, Arc<Model>)>);

impl Loaded {
    /// What the files hold that the pools name: the models, and whom they believe as replicas.
    ///
    /// # Errors
    /// As [`Loaded::load`], or a file of TLS is not what it should be.
    pub(super) fn files(&mut self, config: &Config, log: &Log) -> Result<Files, String> {
        // The cheaper first: what is refused by it has loaded nothing.
        let trusts = identity::trusts(config)?;
        Ok(Files { models: self.load(config, log)?, trusts })
    }

    /// The model of each pool that names a tokenizer, by the pool's name; pools that name the same
    /// share it. Loads side by side, and only what is new or whose files have changed.
    ///
    /// # Errors
    /// A model cannot be loaded, or there are too many, in words for the operator; then nothing is
    /// forgotten.
    fn load(&mut self, config: &Config, log: &Log) -> Result<HashMap<String, Arc<Model>>, String> {
        let mut wanted: Vec<Named> = config.pools.iter().filter_map(named).collect();
        wanted.sort();
        wanted.dedup();
        if wanted.len() > MODELS_MAX {
            let n = wanted.len();
            return Err(format!("{n} tokenizers are configured; at most {MODELS_MAX} are loaded"));
        }
        let mut models = HashMap::new();
        let mut missing = Vec::new();
        for named in wanted {
            let stamp = stamp(&named);
            match self.0.get(&named).filter(|(then, _)| *then == stamp) {
                Some(known) => drop(models.insert(named, known.clone())),
                None => missing.push((named, stamp)),
            }
        }
        for ((named, stamp), model) in missing.iter().zip(side_by_side(&missing)) {
            let model = model.map_err(|e| format!("cannot load a tokenizer: {e}"))?;
            for line in model.remarks() {
                log.warn(&format!("tokenizer {}: {line}", named.0));
            }
            models.insert(named.clone(), (*stamp, Arc::new(model)));
        }
        let bytes = models.values().map(|(_, model)| model.tokenizer().bytes());
        let bytes = bytes.fold(0, usize::saturating_add);
        if bytes > MODEL_BYTES_MAX {
            let (mib, most) = (bytes >> 20, MODEL_BYTES_MAX >> 20);
            return Err(format!("the tokenizers take {mib} MiB; at most {most} MiB are allowed"));
        }
        self.0 = models;
        let of_pool = |pool: &Pool| {
            let (_, model) = self.0.get(&named(pool)?)?;
            Some((pool.name.clone(), Arc::clone(model)))
        };
        Ok(config.pools.iter().filter_map(of_pool).collect())
    }
}

fn side_by_side(wanted: &[(Named, u64)]) -> Vec<Result<Model, String>> {
    std::thread::scope(|scope| {
        let load = |(folder, template): &Named| {
            Model::load(Path::new(folder), template.as_deref().map(Path::new))
        };
        let threads = wanted.iter().map(|(named, _)| scope.spawn(move || load(named)));
        let threads: Vec<_> = threads.collect();
        let lost = |_| Err("a tokenizer could not be loaded: its thread has panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    })
}

/// Names, sizes and times of the files of a model: another number when one of them was written.
fn stamp((folder, template): &Named) -> u64 {
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = listed.map(|entry| entry.path()).take(FILES_MAX).collect();
    files.extend(template.iter().map(Into::into));
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        let meta = std::fs::metadata(&file).ok();
        let facts = meta.map(|meta| (meta.len(), meta.modified().ok()));
        (file, facts).hash(&mut hasher);
    }
    hasher.finish()
}
