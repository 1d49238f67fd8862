//! Which tokens are found, and which of them cut.

use super::*;

fn token(id: u32, content: &str) -> AddedToken {
    AddedToken {
        id,
        content: content.to_owned(),
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special: true,
    }
}

/// Ids, places and roles over the whole text.
fn all(added: &Added, text: &str) -> Vec<(u32, usize, usize, Role)> {
    let (mut from, mut found) = (0, Vec::new());
    while let Some(next) = added.find(text, from, text.len()) {
        found.push((next.id, next.start, next.end, next.role));
        from = next.end;
    }
    found
}

#[test]
fn a_token_within_a_longer_one_is_no_boundary() {
    let tokens = [token(1, "<a>"), token(2, "<b>"), token(3, "<x><a><b>"), token(4, "<x>")];
    let added = Added::new(&tokens, true).unwrap();
    assert!(added.is_complete());
    assert_eq!(all(&added, "<x><a><b>"), [(3, 0, 9, Role::Boundary)]);
    assert_eq!(
        all(&added, "<x><a><a>"),
        [(4, 0, 3, Role::Boundary), (1, 3, 6, Role::Boundary), (1, 6, 9, Role::Boundary)]
    );
}

#[test]
fn a_token_that_starts_in_the_window_is_seen_whole() {
    let added = Added::new(&[token(1, "<a"), token(2, "<abc>")], true).unwrap();
    let text = "..<abc>";
    assert_eq!(added.find(text, 0, 2), None);
    assert_eq!(added.find(text, 0, 3).map(|found| (found.id, found.end)), Some((2, 7)));
    assert_eq!(added.find(text, 7, 99), None);
    assert_eq!(Added::new(&[], true).unwrap().find(text, 0, 7), None);
}

#[test]
fn a_token_that_looks_around_never_cuts() {
    let strips = AddedToken { rstrip: true, ..token(1, "<r>") };
    let added =
        Added::new(&[strips, token(2, "<a>"), token(3, " b"), token(4, "c")], true).unwrap();
    let roles: Vec<Role> = all(&added, "<r><a> bc").iter().map(|found| found.3).collect();
    // Beside a token that takes white space along, what begins with white space or a letter is
    // not safe either.
    assert_eq!(roles, [Role::Inside, Role::Boundary, Role::Inside, Role::Inside]);
    assert!(added.has_flags());
}

#[test]
fn white_space_and_the_tokens_of_a_vocabulary_full_of_them_cut_only_at_need() {
    let plain = |id: u32, content: &str| AddedToken { special: false, ..token(id, content) };
    let few = Added::new(&[plain(1, "\n\n"), plain(2, "<think>")], true).unwrap();
    let roles: Vec<Role> = all(&few, "\n\n<think>").iter().map(|found| found.3).collect();
    assert_eq!(roles, [Role::Soft, Role::Boundary]);
    let mut tokens: Vec<_> = (0..2000).map(|id| plain(id, &format!("<t{id}>"))).collect();
    tokens.push(token(9000, "<turn>"));
    let many = Added::new(&tokens, true).unwrap();
    let roles: Vec<Role> = all(&many, "<t7><turn>").iter().map(|found| found.3).collect();
    assert_eq!(roles, [Role::Soft, Role::Boundary]);
}

#[test]
fn tokens_of_the_second_pass_join_only_when_it_reads_the_same_text() {
    let second = |id: u32, content: &str| AddedToken { normalized: true, ..token(id, content) };
    let tokens = [token(1, "<a>"), second(2, "<b>")];
    let added = Added::new(&tokens, true).unwrap();
    assert!(added.is_complete());
    assert_eq!(all(&added, "<b><a>").len(), 2);
    let added = Added::new(&tokens, false).unwrap();
    assert!(!added.is_complete());
    assert_eq!(all(&added, "<b><a>"), [(1, 3, 6, Role::Boundary)]);
    // `x<` could hide the `<a>` that the first pass takes: it stays out.
    let added = Added::new(&[token(1, "<a>"), second(2, "x<")], true).unwrap();
    assert!(!added.is_complete());
    assert_eq!(all(&added, "x<a>"), [(1, 1, 4, Role::Boundary)]);
}
