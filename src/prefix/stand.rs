//! Where a new block stands: in its home, in its other bucket, or where a block was that could
//! make room.
//!
//! Runs under the writer's lock. Every move shows a reader the block in both places before it is
//! gone from the first.

use super::directory::{Bucket, LANES, Side};
use super::set::Set;

/// Moves, one behind the other, that may make room for one block.
const MOVES_MAX: usize = 3;

/// Stands a block that is not there; whether there was a place.
pub(super) fn stand(side: &Side, home: usize, key: u64, set: Set) -> bool {
    let at = [home, Side::other(key, home)];
    let free = |&at: &usize| Some((at, side.bucket(at)?.lane(0)?));
    let place = at.iter().find_map(free).or_else(|| {
        (1..=MOVES_MAX).find_map(|moves| {
            at.iter().find_map(|&at| Some((at, make_room(side, at, moves, None)?)))
        })
    });
    let Some((at, lane)) = place else { return false };
    let (Some(bucket), Some(own)) = (side.bucket(at), side.bucket(home)) else { return false };
    if at != home {
        own.pass(true);
    }
    bucket.take(lane, key, set);
    true
}

/// A lane of the full bucket `at`, freed by so many moves exactly, none of them into `not`.
fn make_room(side: &Side, at: usize, moves: usize, not: Option<usize>) -> Option<usize> {
    let bucket = side.bucket(at)?;
    (0..LANES).find_map(|lane| {
        let (key, set) = bucket.at(lane)?;
        let home = side.home(key);
        let to = if at == home { Side::other(key, home) } else { home };
        if not == Some(to) {
            return None;
        }
        let place = match moves {
            1 => side.bucket(to)?.lane(0)?,
            _ => make_room(side, to, moves - 1, Some(at))?,
        };
        relocate(side.bucket(home)?, bucket, lane, side.bucket(to)?, place, key, set);
        Some(lane)
    })
}

/// Moves a block to a free lane.
fn relocate(
    home: &Bucket,
    from: &Bucket,
    lane: usize,
    to: &Bucket,
    place: usize,
    key: u64,
    set: Set,
) {
    let leaves_home = std::ptr::eq(home, from);
    if leaves_home {
        home.pass(true);
    }
    to.take(place, key, set);
    from.free(lane);
    if !leaves_home {
        home.pass(false);
    }
}
