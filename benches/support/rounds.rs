//! Rounds of a bench from outside: `--rounds CASE N` makes a case ready and runs N rounds of it, of
//! which `scripts/instructions` counts the instructions.
//!
//! The rest of the script's questions: `--list` prints each case with the rounds that are to be
//! counted, `--processor` what of the processor decides which code is run.

use std::env;

/// One round; called with 0, 1, 2 and so on.
pub(crate) type Round = Box<dyn FnMut(u64)>;

/// A thing that is counted.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Rounds of the difference; as many before them are the warm-up. A case has work for both.
    pub(crate) rounds: u64,
    /// Makes it ready; `None` when its files are not here.
    pub(crate) make: fn() -> Option<Round>,
}

/// Runs rounds. What it executes is counted, by its name.
#[inline(never)]
pub(crate) fn run(round: &mut Round, from: u64, count: u64) {
    (from..from + count).for_each(round);
}

/// Answers the script; `false` when it was not the script that called.
pub(crate) fn answered(cases: &[Case]) -> bool {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--list"] => cases.iter().for_each(|case| println!("{} {}", case.name, case.rounds)),
        ["--processor"] => println!("{}", processor()),
        ["--rounds", name, count] => {
            let case = cases.iter().find(|case| case.name == name).expect("a case of this bench");
            match (case.make)() {
                Some(mut round) => run(&mut round, 0, count.parse().expect("a number of rounds")),
                None => println!("absent"),
            }
        }
        _ => return false,
    }
    true
}

/// The architecture and those of its extensions for which libraries have code of their own: memchr,
/// xxhash, the C library.
fn processor() -> String {
    let mut all = vec![env::consts::ARCH];
    #[cfg(target_arch = "x86_64")]
    {
        let has = [
            ("sse4.2", is_x86_feature_detected!("sse4.2")),
            ("popcnt", is_x86_feature_detected!("popcnt")),
            ("avx", is_x86_feature_detected!("avx")),
            ("avx2", is_x86_feature_detected!("avx2")),
            ("bmi2", is_x86_feature_detected!("bmi2")),
            ("erms", is_x86_feature_detected!("ermsb")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ];
        all.extend(has.iter().filter(|(_, has)| *has).map(|(name, _)| name));
    }
    all.join(" ")
}
