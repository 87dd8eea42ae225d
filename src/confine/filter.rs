//! A seccomp filter that finds the system call by halving, as bpf(4) allows. When it is installed,
//! the kernel runs it once for every system call that exists (`seccomp_cache_prepare` in
//! kernel/seccomp.c): a list that is compared one by one, which is what the library makes, takes
//! 0.3 ms of every call. The kernel also translates the filter, so that a short one is worth
//! having.

use nix::errno::Errno;
use nix::libc;
use seccompiler::sock_filter;

/// The answer to a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is made.
    Made,
    /// It fails with EPERM.
    Refused,
    /// It is made if its argument of this number has this value.
    MadeIf(u8, u32),
}

/// Places in `struct seccomp_data` (linux/seccomp.h).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// AUDIT_ARCH_* (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const OURS: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const OURS: u32 = 0xc000_00b7;

/// The filter that gives each of `special` its answer, and all other calls `otherwise`.
pub fn filter(special: &[(i64, Answer)], otherwise: Answer) -> Vec<sock_filter> {
    let mut special: Vec<(u32, Answer)> = special
        .iter()
        .filter_map(|(number, answer)| Some((u32::try_from(*number).ok()?, *answer)))
        .collect();
    special.sort_by_key(|(number, _)| *number);
    // The first number of each range of calls that have one answer.
    let mut ranges = vec![(0, otherwise)];
    for (number, answer) in special {
        if ranges.last().is_some_and(|(first, _)| *first == number) {
            ranges.pop();
        }
        if ranges.last().is_none_or(|(_, last)| *last != answer) {
            ranges.push((number, answer));
        }
        ranges.push((number + 1, otherwise));
    }
    // The calls of x32, by the same architecture: their numbers have this bit.
    #[cfg(target_arch = "x86_64")]
    ranges.push((0x4000_0000, Answer::Refused));
    // The last instruction first, so that whatever is jumped to is there: no instruction is written
    // twice.
    let mut program = vec![end(Answer::Refused), end(Answer::Made)];
    let found = search(&mut program, &ranges);
    if found + 1 != program.len() {
        go_to(&mut program, found);
    }
    program.extend([
        load(NUMBER),
        // The calls of 32-bit programs have other numbers.
        end(Answer::Refused),
        jump(libc::BPF_JEQ, OURS, 1, 0),
        load(ARCHITECTURE),
    ]);
    program.reverse();
    program
}

/// Positions of the answers in the program, from its end.
const REFUSED: usize = 0;
const MADE: usize = 1;

/// Writes what finds the range of a call, and returns where that begins.
fn search(program: &mut Vec<sock_filter>, ranges: &[(u32, Answer)]) -> usize {
    let (below, above) = ranges.split_at(ranges.len() / 2);
    let Some((first, answer)) = above.first() else {
        return REFUSED;
    };
    if below.is_empty() {
        return leaf(program, *answer);
    }
    let below = search(program, below);
    let above = search(program, above);
    branch(program, libc::BPF_JGE, *first, above, below)
}

fn leaf(program: &mut Vec<sock_filter>, answer: Answer) -> usize {
    match answer {
        Answer::Made => MADE,
        Answer::Refused => REFUSED,
        // The lower half of an argument: the ones of interest are `int`.
        Answer::MadeIf(argument, value) => {
            branch(program, libc::BPF_JEQ, value, MADE, REFUSED);
            program.push(load(ARGUMENTS + 8 * u32::from(argument)));
            program.len() - 1
        }
    }
}

/// Writes a conditional jump, and returns where it is.
fn branch(
    program: &mut Vec<sock_filter>,
    condition: u32,
    value: u32,
    then: usize,
    otherwise: usize,
) -> usize {
    let (then, otherwise) = (near(program, then), near(program, otherwise));
    let over = |place: usize| u8::try_from(program.len() - 1 - place).unwrap_or(u8::MAX);
    program.push(jump(condition, value, over(then), over(otherwise)));
    program.len() - 1
}

/// A conditional jump reaches 255 instructions, an unconditional one all. Another of these may
/// still come between.
fn near(program: &mut Vec<sock_filter>, place: usize) -> usize {
    if program.len() - place < 255 {
        place
    } else {
        go_to(program, place)
    }
}

fn go_to(program: &mut Vec<sock_filter>, place: usize) -> usize {
    let over = u32::try_from(program.len() - 1 - place).unwrap_or(u32::MAX);
    program.push(jump(libc::BPF_JA, over, 0, 0));
    program.len() - 1
}

fn load(at: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0)
}

fn jump(condition: u32, value: u32, then: u8, otherwise: u8) -> sock_filter {
    instruction(
        libc::BPF_JMP | condition | libc::BPF_K,
        value,
        then,
        otherwise,
    )
}

fn end(answer: Answer) -> sock_filter {
    let refused = libc::SECCOMP_RET_ERRNO | Errno::EPERM as u32;
    let value = if answer == Answer::Made {
        libc::SECCOMP_RET_ALLOW
    } else {
        refused
    };
    instruction(libc::BPF_RET | libc::BPF_K, value, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    // All codes are below 256.
    sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf,
        k,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs the filter as the kernel does. Returns whether the call is made, and how many
    /// instructions that took.
    fn run(
        program: &[sock_filter],
        architecture: u32,
        number: u32,
        arguments: [u32; 6],
    ) -> (bool, usize) {
        let (mut at, mut value, mut steps) = (0, 0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            (at, steps) = (at + 1, steps + 1);
            match u32::from(code) {
                0x20 if k == 0 => value = number,
                0x20 if k == 4 => value = architecture,
                0x20 => value = arguments[usize::try_from((k - 16) / 8).unwrap()],
                0x05 => at += usize::try_from(k).unwrap(),
                0x15 => at += usize::from(if value == k { jt } else { jf }),
                0x35 => at += usize::from(if value >= k { jt } else { jf }),
                0x06 => return (k == 0x7fff_0000, steps),
                other => panic!("{other:#x}"),
            }
        }
    }

    #[test]
    fn calls_of_other_architectures_are_refused() {
        let program = filter(&[(1, Answer::Made)], Answer::Made);
        assert!(run(&program, OURS, 1, [0; 6]).0);
        assert!(!run(&program, 0x4000_0003, 1, [0; 6]).0);
    }

    proptest! {
        #[test]
        fn each_call_gets_its_answer(
            special in proptest::collection::btree_map(0_i64..500, 0_u32..3, 0..200),
            otherwise: bool,
        ) {
            let answer = |kind: u32| match kind {
                0 => Answer::Made,
                1 => Answer::Refused,
                _ => Answer::MadeIf(1, 7),
            };
            let all: Vec<_> = special.iter().map(|(number, kind)| (*number, answer(*kind))).collect();
            let default = if otherwise { Answer::Made } else { Answer::Refused };
            let program = filter(&all, default);
            prop_assert!(program.len() < 4096);
            let conditions = special.values().filter(|kind| **kind == 2).count();
            prop_assert!(program.len() < 10 + 3 * special.len() + 2 * conditions, "{}", program.len());
            for number in (0..520).chain([0x4000_0000, u32::MAX]) {
                let default = if number >= 0x4000_0000 { Answer::Refused } else { default };
                let expected = special.get(&i64::from(number)).map_or(default, |kind| answer(*kind));
                for argument in [0, 7] {
                    let made = expected == Answer::Made || (expected == Answer::MadeIf(1, 7) && argument == 7);
                    let (is_made, steps) = run(&program, OURS, number, [0, argument, 0, 0, 0, 0]);
                    prop_assert_eq!(is_made, made, "{}", number);
                    prop_assert!(steps < 40, "{}", steps);
                }
            }
        }
    }
}
