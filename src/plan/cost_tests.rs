//! Costs against the figures of the documents, and what cannot be.

use super::*;

/// The blueprint's: GPT-4o's price, 100 M tokens a day of which a quarter are answers, and a
/// cluster that costs $319 k a year.
fn blueprint() -> Question {
    Question {
        tokens_day: 100e6,
        output_share: 0.25,
        api_input: 2.5,
        api_output: 10.0,
        gpu_hour: 319_000.0 / (8.0 * 8760.0),
        gpus_a_replica: 8.0,
        replica_tps: None,
        replicas: Some(1.0),
        spare: 0.0,
        peak: 1.0,
        other_month: 0.0,
        setup: 0.0,
        growth: 0.0,
        months: 12,
    }
}

#[test]
fn the_blueprints_year_is_reckoned_anew() {
    let asked = blueprint();
    asked.check().expect("possible");
    let year = |asked: &Question| asked.table()[11];
    assert!((year(&asked).own_sum - 319_000.0).abs() < 1.0);
    assert!((year(&asked).api_sum - 159_687.5).abs() < 1.0);
    let only = |output_share| Question { output_share, ..asked };
    assert!((year(&only(0.0)).api_sum - 91_250.0).abs() < 1.0);
    assert!((year(&only(1.0)).api_sum - 365_000.0).abs() < 1.0);
    // $1.12 M a year are 701 M tokens a day of the mix; the cluster pays from 200 M on.
    let at = |tokens_day| Question { tokens_day, ..asked };
    assert!((year(&at(701.4e6)).api_sum / 1.12e6 - 1.0).abs() < 0.001);
    let (even, replicas) = asked.break_even().expect("it meets");
    assert!((even / 199.8e6 - 1.0).abs() < 0.001 && replicas == 1.0, "{even}");
    let saving = 1.0 - 319.0 / 1120.0;
    assert!((saving - 0.715_f64).abs() < 0.001);
}

#[test]
fn the_articles_fleet_costs_what_it_costs() {
    // $2,600/h for 80 GPUs: $32.50 each; at 1.5 M output tokens a minute $28.9 a million.
    let tps = 1.5e6 / 60.0;
    let asked =
        Question { gpu_hour: 32.5, gpus_a_replica: 80.0, replica_tps: Some(tps), ..blueprint() };
    let price = asked.full_load_price().expect("known");
    assert!((price - 28.89).abs() < 0.01, "{price}");
    // $9 takes 80 k output tokens a second.
    assert!((price / 9.0 * tps - 80_247.0).abs() < 1.0);
    assert!((asked.own_day(1.0) * 365.0 - 22.776e6).abs() < 1.0);
}

#[test]
fn the_stairs_meet_the_line_where_they_carry_it() {
    // A replica of $24 a day that makes 10 tok/s: 864,000 tokens a day, output alone.
    let stairs = Question {
        tokens_day: 1e6,
        output_share: 1.0,
        api_input: 0.0,
        api_output: 50.0,
        gpu_hour: 1.0,
        gpus_a_replica: 1.0,
        replica_tps: Some(10.0),
        replicas: None,
        ..blueprint()
    };
    assert_eq!(stairs.replicas_for(1e6), 2.0);
    // $24 are 480,000 tokens of the API: the first step carries them.
    assert_eq!(stairs.break_even(), Some((480_000.0, 1.0)));
    // With one spare, two replicas of $48 meet the line at 960,000, beyond what one carries.
    let spare = Question { spare: 1.0, ..stairs };
    assert_eq!(spare.break_even(), Some((1_440_000.0, 3.0)));
    // At $20 a million a full replica costs more than the API.
    assert_eq!(Question { api_output: 20.0, ..stairs }.break_even(), None);
    // A fixed fleet that cannot carry what it would need.
    let fixed = Question { replicas: Some(2.0), api_output: 20.0, ..stairs };
    assert_eq!(fixed.break_even(), None);
    // At a break-even the fleet carries the volume, and for no more than the API asks.
    for asked in [stairs, spare] {
        let (volume, replicas) = asked.break_even().expect("it meets");
        assert!(asked.replicas_for(volume) <= replicas);
        let busy = asked.replicas_for(volume) - asked.spare;
        assert!(busy * 10.0 * 86_400.0 >= volume);
        assert!(asked.own_day(replicas) <= volume * asked.api_price() / 1e6 + 1e-9);
    }
}

#[test]
fn months_grow_and_sum() {
    let asked = Question { growth: 0.5, setup: 1000.0, other_month: 10.0, ..blueprint() };
    let table = asked.table();
    assert_eq!(table.len(), 12);
    assert!((table[2].tokens_day - 225e6).abs() < 1.0);
    assert!((table[0].own - table[1].own - 1000.0).abs() < 1e-6);
    let sum: f64 = table.iter().map(|month| month.own).sum();
    assert!((sum - table[11].own_sum).abs() < 1e-6);
    assert!((table[3].api_sum - table[2].api_sum - table[3].api).abs() < 1e-6);
}

#[test]
fn what_cannot_be_is_refused() {
    let base = blueprint();
    let known = Question { replica_tps: Some(200.0), ..base };
    let wrong = [
        (Question { tokens_day: 0.0, ..base }, "tokens a day"),
        (Question { tokens_day: f64::NAN, ..base }, "tokens a day"),
        (Question { output_share: 1.2, ..base }, "output share"),
        (Question { api_input: -1.0, ..base }, "API price of input"),
        (Question { api_input: 0.0, api_output: 0.0, ..base }, "free of charge"),
        (Question { api_output: 0.0, api_input: 0.0, output_share: 1.0, ..base }, "free"),
        (Question { gpu_hour: 0.0, ..base }, "GPU-hour"),
        (Question { peak: 0.5, ..base }, "peak"),
        (Question { growth: -1.0, ..base }, "growth"),
        (Question { months: 0, ..base }, "months"),
        (Question { replicas: Some(0.0), ..base }, "replicas"),
        (Question { replicas: None, ..base }, "--replica-tps"),
        (Question { replica_tps: Some(1e9), ..base }, "beyond any GPU"),
        // 100 M a day, a quarter answers, are 289 tok/s.
        (known, "the peak asks for 289: it takes 2"),
        (Question { growth: 1.0, replica_tps: Some(400.0), ..base }, "it takes"),
    ];
    for (asked, told) in wrong {
        let error = asked.check().expect_err(told);
        assert!(error.contains(told), "{told}: {error}");
    }
    Question { replica_tps: Some(300.0), ..base }.check().expect("possible");
}
