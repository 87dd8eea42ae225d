//! A seccomp filter that finds the system call by halving, as bpf(4) allows. When it is installed, the kernel runs it once
//! for every system call that exists (`seccomp_cache_prepare` in kernel/seccomp.c): a list that is compared one by one,
//! which is what the library makes, takes 0.3 ms of every call.

use nix::errno::Errno;
use nix::libc;
use seccompiler::sock_filter;

/// What becomes of a system call.
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
    let mut special: Vec<(u32, Answer)> =
        special.iter().filter_map(|(number, answer)| Some((u32::try_from(*number).ok()?, *answer))).collect();
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
    let mut program = vec![
        load(ARCHITECTURE),
        jump(libc::BPF_JEQ, OURS, 1, 0),
        // The calls of 32-bit programs have other numbers.
        end(Answer::Refused),
        load(NUMBER),
    ];
    program.extend(halves(&ranges));
    program
}

fn halves(ranges: &[(u32, Answer)]) -> Vec<sock_filter> {
    let (below, above) = ranges.split_at(ranges.len() / 2);
    if below.is_empty() {
        return above.first().map_or_else(Vec::new, |(_, answer)| leaf(*answer));
    }
    let (below, upper) = (halves(below), halves(above));
    let first = above.first().map_or(0, |(first, _)| *first);
    let over = u32::try_from(below.len()).unwrap_or(u32::MAX);
    // A conditional jump reaches 255 instructions, an unconditional one all.
    let mut program = vec![jump(libc::BPF_JGE, first, 0, 1), jump(libc::BPF_JA, over, 0, 0)];
    program.extend(below);
    program.extend(upper);
    program
}

fn leaf(answer: Answer) -> Vec<sock_filter> {
    match answer {
        Answer::Made | Answer::Refused => vec![end(answer)],
        // The lower half of an argument: the ones of interest are `int`.
        Answer::MadeIf(argument, value) => vec![
            load(ARGUMENTS + 8 * u32::from(argument)),
            jump(libc::BPF_JEQ, value, 1, 0),
            end(Answer::Refused),
            end(Answer::Made),
        ],
    }
}

fn load(at: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0)
}

fn jump(condition: u32, value: u32, then: u8, otherwise: u8) -> sock_filter {
    instruction(libc::BPF_JMP | condition | libc::BPF_K, value, then, otherwise)
}

fn end(answer: Answer) -> sock_filter {
    let refused = libc::SECCOMP_RET_ERRNO | Errno::EPERM as u32;
    let value = if answer == Answer::Made { libc::SECCOMP_RET_ALLOW } else { refused };
    instruction(libc::BPF_RET | libc::BPF_K, value, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    // All codes are below 256.
    sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs the filter as the kernel does. Returns whether the call is made, and how many instructions that took.
    fn run(program: &[sock_filter], architecture: u32, number: u32, arguments: [u32; 6]) -> (bool, usize) {
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
