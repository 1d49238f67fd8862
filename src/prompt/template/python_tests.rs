//! Spellings taken from CPython 3.11.

use super::*;

#[test]
fn floats_are_spelled_as_python_spells_them() {
    for (value, spelling) in [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (-1.5, "-1.5"),
        (0.1, "0.1"),
        (0.30000000000000004, "0.30000000000000004"),
        (100.0, "100.0"),
        (12345.678, "12345.678"),
        (0.001, "0.001"),
        (0.0001, "0.0001"),
        (1e-5, "1e-05"),
        (1.5e-7, "1.5e-07"),
        (1e15, "1000000000000000.0"),
        (9999999999999998.0, "9999999999999998.0"),
        (1e16, "1e+16"),
        (1.2345e16, "1.2345e+16"),
        (1.2345678901234568e17, "1.2345678901234568e+17"),
        (1e100, "1e+100"),
        (5e-324, "5e-324"),
        (f64::MAX, "1.7976931348623157e+308"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
    ] {
        let mut out = String::new();
        push_float(&mut out, value);
        assert_eq!(out, spelling);
    }
}

#[test]
fn every_float_reads_back_to_itself() {
    let mut seed = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let value = f64::from_bits(seed.u64(..));
        let mut out = String::new();
        push_float(&mut out, value);
        if value.is_finite() {
            assert_eq!(out.parse::<f64>().map(f64::to_bits), Ok(value.to_bits()), "{out}");
        }
    }
}

#[test]
fn strings_are_quoted_as_python_quotes_them() {
    for (text, spelling) in [
        ("", "''"),
        ("it's", "\"it's\""),
        ("\"it's\"", "'\"it\\'s\"'"),
        ("a\\b", "'a\\\\b'"),
        ("\n\r\t\0\x7f", "'\\n\\r\\t\\x00\\x7f'"),
        ("\u{e9}\u{ad}\u{200b}\u{2028}\u{3000}\u{a0}", "'é\\xad\\u200b\\u2028\\u3000\\xa0'"),
        ("\u{1f600}\u{e0001}\u{e000}", "'\u{1f600}\\U000e0001\\ue000'"),
        ("\u{301}x", "'\u{301}x'"),
        ("\u{fdd0}", "'\\ufdd0'"),
    ] {
        let mut out = String::new();
        push_repr(&mut out, text);
        assert_eq!(out, spelling);
    }
}

#[test]
fn the_separators_are_white_space_too() {
    assert_eq!(strip("\u{1c}\u{1f} \u{a0}\u{3000}x\u{85}\u{2029}\u{b}"), "x");
    assert_eq!(strip("\u{200b}x\u{feff}"), "\u{200b}x\u{feff}");
}
