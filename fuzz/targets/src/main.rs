//! Runner of the targets without a fuzzer: it splits, joins and mutates seeds at random for a given
//! time. It finds less than libFuzzer, which has coverage information, but needs only a Rust
//! compiler.
//!
//! ```text
//! linerate-fuzz-targets run SECONDS [TARGET]…     runs each target for this time
//! linerate-fuzz-targets seeds DIR                 writes DIR/TARGET/seed-N for libFuzzer
//! linerate-fuzz-targets replay TARGET FILE…       one input, for a debugger
//! linerate-fuzz-targets list
//! ```

use std::error::Error;
use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};

use linerate_fuzz_targets::{TARGETS, Target, seeds};

/// Longest input in bytes.
const LIMIT_BYTES: usize = 8_192;

/// Number of inputs kept for further mutation.
const POOL_INPUTS: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["list"] => {
            for (name, _) in TARGETS {
                println!("{name}");
            }
            Ok(())
        }
        ["seeds", dir] => write_seeds(Path::new(dir)),
        ["replay", target, ref files @ ..] => {
            let target = find(target)?;
            for file in files {
                target(&std::fs::read(file)?);
            }
            Ok(())
        }
        ["run", seconds, ref names @ ..] => {
            let time = Duration::from_secs(seconds.parse()?);
            let seed = fastrand::u64(..);
            println!("random numbers from {seed}");
            fastrand::seed(seed);
            for (name, target) in TARGETS {
                if names.is_empty() || names.contains(name) {
                    run(name, *target, time)?;
                }
            }
            Ok(())
        }
        _ => Err("run SECONDS [TARGET]…, seeds DIR, replay TARGET FILE…, or list".into()),
    }
}

fn find(target_name: &str) -> Result<Target, Box<dyn Error>> {
    let entry = TARGETS.iter().find(|(name, _)| *name == target_name);
    entry
        .map(|(_, target)| *target)
        .ok_or_else(|| format!("no target {target_name}: see `list`").into())
}

fn write_seeds(dir: &Path) -> Result<(), Box<dyn Error>> {
    for (name, _) in TARGETS {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir)?;
        for (number, seed) in seeds(name).iter().enumerate() {
            std::fs::write(dir.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}

fn run(name: &str, target: fn(&[u8]), time: Duration) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut pool = seeds(name);
    let mut runs = 0u64;
    while start.elapsed() < time {
        for _ in 0..256 {
            let input = mutate(&pool);
            if catch_unwind(|| target(&input)).is_err() {
                let dir = Path::new("artifacts").join(name);
                std::fs::create_dir_all(&dir)?;
                let file = dir.join(format!("mutate-{:016x}", fastrand::u64(..)));
                std::fs::write(&file, &input)?;
                return Err(format!("{name} failed: replay {name} {}", file.display()).into());
            }
            runs += 1;
            // Without coverage information an input is kept at random.
            if fastrand::u32(..64) == 0 {
                if pool.len() < POOL_INPUTS {
                    pool.push(input);
                } else {
                    let index = fastrand::usize(..POOL_INPUTS);
                    pool[index] = input;
                }
            }
        }
    }
    println!("{name}: {runs} inputs, no failure");
    Ok(())
}

/// Returns an input of the pool with a few mutations.
fn mutate(pool: &[Vec<u8>]) -> Vec<u8> {
    let any = || pool.get(fastrand::usize(..pool.len().max(1)));
    let mut input = any().cloned().unwrap_or_default();
    for _ in 0..=fastrand::u32(..4) {
        let at = fastrand::usize(..=input.len());
        match fastrand::u32(..9) {
            0 if at < input.len() => input[at] ^= 1 << fastrand::u32(..8),
            1 if at < input.len() => input[at] = fastrand::u8(..),
            2 if at < input.len() => {
                input[at] = *[0, 1, 4, 0x7f, 0x80, 0xff]
                    .get(fastrand::usize(..6))
                    .unwrap_or(&0)
            }
            3 => input.insert(at, fastrand::u8(..)),
            4 if at < input.len() => drop(input.remove(at)),
            5 => input.truncate(at),
            6 => {
                // Inserts a section of another input.
                let other = any().cloned().unwrap_or_default();
                let from = fastrand::usize(..=other.len());
                let section = &other[from..(from + fastrand::usize(..64)).min(other.len())];
                input.splice(at..at, section.iter().copied());
            }
            7 => {
                // A number at a limit of its range.
                let number = [0u32, 1, 13, 14, 65_507, 65_508, 0x7fff_ffff, u32::MAX];
                let number = number[fastrand::usize(..number.len())].to_be_bytes();
                for (byte, part) in input[at..].iter_mut().zip(number) {
                    *byte = part;
                }
            }
            _ => {
                let end = (at + fastrand::usize(..32)).min(input.len());
                let section = input[at..end].to_vec();
                input.splice(at..at, section);
            }
        }
    }
    input.truncate(LIMIT_BYTES);
    input
}
