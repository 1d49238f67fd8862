//! Loads the tokenizers and templates that the pools name, before anything is served.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::config::{Config, Pool};
use crate::prompt::model::Model;
use crate::runtime::log::Log;

/// Different models that one gateway loads: each costs every core some 25 MB of tables.
const MODELS_MAX: usize = 16;
/// Bytes that their shared tables may take.
const MODEL_BYTES_MAX: usize = 4 << 30;

/// What a pool names: its folder, and a template in the place of the folder's own.
type Named = (String, Option<String>);

fn named(pool: &Pool) -> Option<Named> {
    Some((pool.tokenizer.clone()?, pool.chat_template.clone()))
}

/// The model of each pool that names a tokenizer, by the pool's name; pools that name the same
/// share it. Loads side by side.
///
/// # Errors
/// A model cannot be loaded, or there are too many, in words for the operator.
pub(super) fn load(config: &Config, log: &Log) -> Result<HashMap<String, Arc<Model>>, String> {
    let mut wanted: Vec<Named> = config.pools.iter().filter_map(named).collect();
    wanted.sort();
    wanted.dedup();
    if wanted.len() > MODELS_MAX {
        let n = wanted.len();
        return Err(format!("{n} tokenizers are configured; at most {MODELS_MAX} are loaded"));
    }
    let loaded: Vec<Result<Model, String>> = std::thread::scope(|scope| {
        let load = |(folder, template): &Named| {
            Model::load(Path::new(folder), template.as_deref().map(Path::new))
        };
        let threads: Vec<_> = wanted.iter().map(|named| scope.spawn(move || load(named))).collect();
        let lost = |_| Err("a tokenizer could not be loaded: its thread has panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    });
    let mut models = HashMap::new();
    let mut bytes = 0_usize;
    for (named, model) in wanted.iter().zip(loaded) {
        let model = model.map_err(|e| format!("cannot load a tokenizer: {e}"))?;
        bytes = bytes.saturating_add(model.tokenizer().bytes());
        for line in model.remarks() {
            log.warn(&format!("tokenizer {}: {line}", named.0));
        }
        models.insert(named, Arc::new(model));
    }
    if bytes > MODEL_BYTES_MAX {
        let (mib, most) = (bytes >> 20, MODEL_BYTES_MAX >> 20);
        return Err(format!("the tokenizers take {mib} MiB; at most {most} MiB are allowed"));
    }
    let of_pool = |pool: &Pool| Some((pool.name.clone(), Arc::clone(models.get(&named(pool)?)?)));
    Ok(config.pools.iter().filter_map(of_pool).collect())
}
