//! Input that must get an answer in bounded time and stack, whatever it is.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::{Action, Problem, read};
use crate::policy::cases;

fn timed(command: &str) -> Action {
    let started = Instant::now();
    println!("{:>8} bytes {:.40}", command.len(), command.escape_debug());
    let action = read(command, "/home/dev/project", &cases::world());
    let took = started.elapsed();
    println!("         {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?} for {} bytes: {:.60}", command.len(), command);
    action
}

#[test]
fn hostile_texts_are_answered() {
    let nested = |open: &str, close: &str, depth: usize| format!("{}x{}", open.repeat(depth), close.repeat(depth));
    let texts = [
        "$(".repeat(80_000),
        "a".repeat(1 << 20),
        "echo \0".into(),
        nested("$(", ")", 199),
        nested("echo $(", ")", 60),
        nested("\"$(", ")\"", 90),
        nested("(", ")", 199),
        nested("( ", " )", 60),
        nested("{ ", "; }", 199),
        nested("${a:-", "}", 199),
        nested("if ", "; then :; fi", 190),
        nested("while ", "; do :; done", 190),
        nested("case x in x) ", ";; esac", 190),
        nested("[[ ( ", " ) ]]", 60),
        nested("$((", "))", 90),
        "((".repeat(99),
        "<(".repeat(199),
        "`".repeat(30_001),
        "{a,b}".repeat(6000),
        "{1..99999999999999999999}".into(),
        "~99999999999999999999999".into(),
        "echo ${a:99999999999999999999:1} ${@:1} ${a[99999999999999999999999]} $[ $[ 1".into(),
        "a() { a; a; }; a".into(),
        "a() { b; b; }; b() { a; a; }; a".into(),
        "for a in {1..60}; do for b in {1..60}; do for c in {1..60}; do rm -rf $a$b$c; done; done; done".into(),
        "x=ab; ".to_owned() + &"x=$x$x$x$x; ".repeat(2000) + "rm -rf $x",
        "eval ".repeat(6000) + "x",
        "sudo ".repeat(6000) + "x",
        "cat <<EOF".into(),
        "cat <<EOF\n".repeat(1000),
        "echo 'unterminated".into(),
        "echo \"unterminated $(".into(),
        "rm -rf x\r\n".into(),
        "é\\é$é${é}~é\"é\\é\"`é\\é`$'é\\é'".into(),
        "| | | && ;; )) }} fi done esac".into(),
        "a|".repeat(16_000) + "b",
        "a&&".repeat(10_000) + "b",
        "a=(".repeat(199),
        "!".repeat(30_000),
        "find . ".to_owned() + &"-exec rm {} ; ".repeat(2000),
        "-".repeat(30_000),
        "*".repeat(30_000),
        "x=".to_owned() + &"a".repeat(30_000) + "; echo ${x##" + &"*a".repeat(100) + "}",
        "\u{E000}".repeat(9000),
    ];
    for text in &texts {
        timed(text);
    }
    assert!(matches!(timed(&texts[0]).problems[..], [Problem::TooLarge(_)]));
    assert!(matches!(timed(&"$(".repeat(300)).problems[..], [Problem::TooDeep]));
    assert!(matches!(timed("echo 'x").problems[..], [Problem::Unparsed(_)]));
}
