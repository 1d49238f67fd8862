//! The books of the cache, counted anew: for tests, which compare after every operation.

use std::collections::HashMap;

use super::{Holding, Kind, KvCache, Run, key};
use crate::engine::slab::NONE;

type Checked = Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, counted: T, kept: T) -> Checked {
    if counted == kept {
        Ok(())
    } else {
        Err(format!("{what}: counted {counted:?}, kept {kept:?}"))
    }
}

impl KvCache {
    /// Whether every block is in one place, and every count is right, given all holders.
    pub(in crate::engine) fn check(&self, holders: &[&Holding]) -> Checked {
        let mut refs: HashMap<u32, u32> = HashMap::new();
        let mut held = 0;
        for holder in holders {
            held += holder.own;
            let mut copy = holder.copies;
            while let Some(run) = self.runs.get(copy) {
                *refs.entry(copy).or_default() += 1;
                copy = run.parent;
            }
            let (mut at, mut end) = (holder.leaf, holder.path as u32);
            while let Some(run) = self.runs.get(at) {
                *refs.entry(at).or_default() += 1;
                same("end of a held run", end, run.start + run.len)?;
                (at, end) = (run.parent, run.start);
            }
            same("where a path starts", end, 0)?;
        }
        let waiting: Vec<(u32, &Run)> = self.lru.iter(&self.runs).collect();
        let idle = waiting.iter().map(|(_, run)| u64::from(run.len)).sum();
        same("idle blocks", idle, self.idle)?;
        let in_use: Vec<(u32, &Run)> =
            refs.keys().filter_map(|&at| Some((at, self.runs.get(at)?))).collect();
        let lens = in_use.iter().map(|(_, run)| u64::from(run.len));
        same("all blocks", self.fresh + idle + held + lens.sum::<u64>(), self.total)?;
        same("runs", waiting.len() + in_use.len(), self.runs.len())?;
        for (at, run) in &in_use {
            same("holders of a run", refs.get(at).copied().unwrap_or(0), run.refs)?;
        }
        let order = waiting.iter().enumerate().map(|(i, (at, _))| (*at, i)).collect();
        let all: Vec<(u32, &Run)> = waiting.iter().chain(&in_use).copied().collect();
        self.check_tree(&all, &order)
    }

    fn check_tree(&self, all: &[(u32, &Run)], order: &HashMap<u32, usize>) -> Checked {
        let cached: Vec<&(u32, &Run)> =
            all.iter().filter(|(_, run)| run.kind == Kind::Cached).collect();
        same("first hashes", cached.len(), self.firsts.len())?;
        for &&(at, run) in &cached {
            let first = run.hashes().first().copied().unwrap_or_default();
            same("the place of a first hash", Some(at), self.firsts.get(key(first)))?;
            same("hashes of a run", run.hashes().len(), run.len as usize)?;
            let children = cached.iter().filter(|(_, child)| child.parent == at).count();
            same("children", children, run.children as usize)?;
            if run.parent == NONE {
                same("start of a run without a parent", run.start, 0)?;
                continue;
            }
            let Some(parent) = self.runs.get(run.parent) else { return Err("no parent".into()) };
            same("where a child starts", run.start, parent.start + parent.len)?;
            let chain = run.chain.as_deref().unwrap_or_default();
            let before = (run.start as usize).checked_sub(1).and_then(|i| chain.get(i));
            same("the block before a child", before, parent.hashes().last())?;
            match (order.get(&at), order.get(&run.parent)) {
                (None, Some(_)) => return Err("a child is held, its parent is not".into()),
                (Some(child), Some(parent)) if child > parent => {
                    return Err("a parent would be evicted before its child".into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
