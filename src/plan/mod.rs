//! The planner: a workload against a fleet in virtual time, with the router, the prefix index and
//! the engine model that the gateway and the simulator run.

pub mod mix;
pub mod workload;
mod endless;
mod random;

#[cfg(test)]
mod calib {
    use super::*;
    #[test]
    fn calibration() {
        let mut all = [0.0; 6];
        for seed in 1..=12 {
            let w = mix::Mix { seed, rate: 332.0, seconds: 50.0, hot: 0.0, long: 0.0, adapters: 0 }.workload();
            let mut ev: Vec<(u64, usize, usize)> = vec![];
            for (i, s) in w.sessions.iter().enumerate() {
                let mut t = s.start_us;
                for (k, turn) in s.turns.iter().enumerate() {
                    if t >= w.end_us { break }
                    ev.push((t, i, k));
                    t += 200_000 + 35_000 * turn.output_tokens as u64 + w.think_us;
                }
            }
            ev.sort();
            let mut e = endless::Endless::default();
            let (mut p, mut o, mut h, mut k2,mut half) = (0.0, 0.0, 0.0, [0usize; 3],0);
            for &(t, i, k) in &ev {
                let s = &w.sessions[i];
                p += s.turns[k].prompt_tokens as f64; o += s.turns[k].output_tokens as f64;
                h += e.ask(s, k) as f64; k2[k] += 1; if t<25_000_000 {half+=1}
            }
            let n = ev.len() as f64;
            println!("{seed} n {} in {:.0} out {:.1} endless {:.4} {k2:?} first half {:.3}", ev.len(), p / n, o / n, h / p, half as f64/n);
            for (a, b) in all.iter_mut().zip([n / 50.0, p / n, o / n, h / p, 0.0, 0.0]) { *a += b / 12.0 }
        }
        println!("{all:?}");
    }
}
