//! Self-hosted against an API: dollars a month, a million tokens, and where they meet.
//!
//! A fleet is bought by the replica: its cost is a staircase over the volume, an API's a line
//! through zero. They meet where a step of the stairs is below the line and can carry the volume
//! at its peak; there may be no such place.

/// What is asked. All dollars are of one currency; tokens a day are of a mean day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    /// Prompt and answer tokens a day.
    pub tokens_day: f64,
    /// Share of them that are answers.
    pub output_share: f64,
    /// Dollars for a million prompt tokens of the API.
    pub api_input: f64,
    /// Dollars for a million answer tokens.
    pub api_output: f64,
    /// Dollars for a GPU and hour.
    pub gpu_hour: f64,
    /// GPUs of a replica.
    pub gpus_a_replica: f64,
    /// Output tokens a second that a replica makes within the limits; `None` = not known.
    pub replica_tps: Option<f64>,
    /// Replicas, if they are fixed; else as many as the peak takes.
    pub replicas: Option<f64>,
    /// Replicas more than the peak takes, so that one may fail.
    pub spare: f64,
    /// Rate at the peak over the mean rate.
    pub peak: f64,
    /// Dollars a month besides GPUs: people, network, storage.
    pub other_month: f64,
    /// Dollars once.
    pub setup: f64,
    /// Growth of the volume a month: 0.1 = 10 %.
    pub growth: f64,
    /// Months looked at.
    pub months: u32,
}

/// A month.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Month {
    /// From 1.
    pub number: u32,
    /// Tokens a day.
    pub tokens_day: f64,
    /// Replicas.
    pub replicas: f64,
    /// Dollars of the API, this month.
    pub api: f64,
    /// Dollars of the fleet, this month; in the first with the setup.
    pub own: f64,
    /// Sum of the API's so far.
    pub api_sum: f64,
    /// Sum of the fleet's so far.
    pub own_sum: f64,
}

/// Days and hours of a month: a twelfth of 365 days.
pub const MONTH_DAYS: f64 = 365.0 / 12.0;
const DAY_S: f64 = 86_400.0;
/// Replicas at most.
const REPLICAS_MAX: f64 = 100_000.0;
/// More output tokens a second than a GPU has made anywhere.
const GPU_TPS_MAX: f64 = 100_000.0;

impl Question {
    /// Whether it can be.
    ///
    /// # Errors
    /// Which input cannot be, and why.
    pub fn check(&self) -> Result<(), String> {
        let above = [
            ("tokens a day", self.tokens_day),
            ("price of a GPU-hour", self.gpu_hour),
            ("GPUs of a replica", self.gpus_a_replica),
        ];
        let at_least = [
            ("API price of input", self.api_input),
            ("API price of output", self.api_output),
            ("spare replicas", self.spare),
            ("other cost a month", self.other_month),
            ("setup", self.setup),
        ];
        if let Some((name, value)) = above.into_iter().find(|(_, v)| !(v.is_finite() && *v > 0.0)) {
            return Err(format!("{name}: {value} is not above 0"));
        }
        if let Some((name, v)) = at_least.into_iter().find(|(_, v)| !(v.is_finite() && *v >= 0.0)) {
            return Err(format!("{name}: {v} is below 0"));
        }
        if !(0.0..=1.0).contains(&self.output_share) {
            return Err(format!("output share: {} is not between 0 and 1", self.output_share));
        }
        if self.api_price() <= 0.0 {
            return Err("the API is free of charge for this mix: nothing can be cheaper".to_owned());
        }
        if !(self.peak.is_finite() && self.peak >= 1.0) {
            return Err(format!("peak: {} times the mean is below the mean", self.peak));
        }
        if !(self.growth.is_finite() && self.growth > -1.0 && self.growth <= 10.0) {
            return Err(format!("growth: {} a month is not between -1 and 10", self.growth));
        }
        if !(1..=120).contains(&self.months) {
            return Err(format!("months: {} is not between 1 and 120", self.months));
        }
        self.check_fleet()
    }

    fn check_fleet(&self) -> Result<(), String> {
        if let Some(tps) = self.replica_tps {
            if !(tps.is_finite() && tps > 0.0) {
                return Err(format!("output of a replica: {tps} tok/s is not above 0"));
            }
            if tps > GPU_TPS_MAX * self.gpus_a_replica {
                return Err(format!(
                    "output of a replica: {tps:.0} tok/s of {} GPUs is beyond any GPU",
                    self.gpus_a_replica
                ));
            }
        }
        let last = (0..self.months).map(|month| self.volume(month)).fold(0.0, f64::max);
        let asked = self.peak_tps(last);
        match (self.replicas, self.replica_tps) {
            (None, None) => Err("say --replicas, or --replica-tps to reckon them".to_owned()),
            (Some(n), _) if !(1.0..=REPLICAS_MAX).contains(&n) => {
                Err(format!("replicas: {n} is not between 1 and {REPLICAS_MAX}"))
            }
            (Some(n), Some(tps)) if n * tps < asked => Err(format!(
                "{n} replicas make {:.0} output tok/s, the peak asks for {asked:.0}: it takes {}",
                n * tps,
                (asked / tps).ceil()
            )),
            (None, Some(tps)) if asked / tps > REPLICAS_MAX => Err(format!(
                "the peak asks for {asked:.0} output tok/s: more than {REPLICAS_MAX} replicas"
            )),
            _ => Ok(()),
        }
    }

    /// Dollars of the API for a million tokens of the mix.
    #[must_use]
    pub fn api_price(&self) -> f64 {
        self.api_input * (1.0 - self.output_share) + self.api_output * self.output_share
    }

    /// Output tokens a second at the peak of a day of so many tokens.
    #[must_use]
    pub fn peak_tps(&self, tokens_day: f64) -> f64 {
        tokens_day * self.output_share / DAY_S * self.peak
    }

    /// Replicas for a day of so many tokens.
    #[must_use]
    pub fn replicas_for(&self, tokens_day: f64) -> f64 {
        match (self.replicas, self.replica_tps) {
            (Some(n), _) => n,
            (None, Some(tps)) => (self.peak_tps(tokens_day) / tps).ceil().max(1.0) + self.spare,
            (None, None) => 1.0 + self.spare,
        }
    }

    /// Dollars a day of so many replicas, the rest of the month's cost included.
    #[must_use]
    pub fn own_day(&self, replicas: f64) -> f64 {
        replicas * self.gpus_a_replica * self.gpu_hour * 24.0 + self.other_month / MONTH_DAYS
    }

    /// Tokens a day in a month from 0.
    fn volume(&self, month: u32) -> f64 {
        self.tokens_day * (1.0 + self.growth).powi(i32::try_from(month).unwrap_or(0))
    }

    /// Dollars of the fleet for a million tokens at the volume asked.
    #[must_use]
    pub fn own_price(&self) -> f64 {
        self.own_day(self.replicas_for(self.tokens_day)) / self.tokens_day * 1e6
    }

    /// Dollars for a million output tokens of a replica that is always at its limit.
    #[must_use]
    pub fn full_load_price(&self) -> Option<f64> {
        let tps = self.replica_tps?;
        Some(self.gpus_a_replica * self.gpu_hour / 3600.0 / tps * 1e6)
    }

    /// Tokens a day from which the fleet is no dearer than the API, and its replicas there. `None`
    /// when it never is: each further replica costs more than the API for what it makes.
    #[must_use]
    pub fn break_even(&self) -> Option<(f64, f64)> {
        let price = self.api_price() / 1e6;
        let meets = |replicas: f64| self.own_day(replicas) / price;
        let Some(tps) = self.replica_tps else {
            let replicas = self.replicas_for(self.tokens_day);
            return Some((meets(replicas), replicas));
        };
        // A day that so many replicas carry at its peak, the spare ones idle. All-input days take
        // no output: any fleet carries them, as far as this reckoning sees.
        let carries = |replicas: f64| {
            let busy = if self.replicas.is_some() { replicas } else { replicas - self.spare };
            busy * tps * DAY_S / self.peak / self.output_share.max(1e-12)
        };
        if let Some(n) = self.replicas {
            return (meets(n) <= carries(n)).then(|| (meets(n), n));
        }
        let mut replicas = 1.0 + self.spare;
        while replicas <= REPLICAS_MAX {
            if meets(replicas) <= carries(replicas) {
                // Not below what needs so many replicas at all.
                let least = carries(replicas - 1.0).max(0.0);
                return Some((meets(replicas).max(least), replicas));
            }
            replicas += 1.0;
        }
        None
    }

    /// Month by month.
    #[must_use]
    pub fn table(&self) -> Vec<Month> {
        let (mut api_sum, mut own_sum) = (0.0, self.setup);
        let month = |at: u32| {
            let tokens_day = self.volume(at);
            let replicas = self.replicas_for(tokens_day);
            let api = tokens_day * MONTH_DAYS * self.api_price() / 1e6;
            let running = self.own_day(replicas) * MONTH_DAYS;
            let own = if at == 0 { running + self.setup } else { running };
            (api_sum, own_sum) = (api_sum + api, own_sum + running);
            Month { number: at + 1, tokens_day, replicas, api, own, api_sum, own_sum }
        };
        (0..self.months).map(month).collect()
    }
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
