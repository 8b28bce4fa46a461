//! Number of polling threads, and their processors.

use linerate_metric::plan::Cpus;

use super::run::Settings;
use crate::MeasureError;

/// Returns the number of polling threads: one per direction, or one for both.
///
/// # Errors
/// [`MeasureError::Generator`] if a listed processor is not usable by this process, or if the
/// number of processors and threads differ.
pub(super) fn of(settings: &Settings, receives: bool, usable: &[u32]) -> Result<u32, MeasureError> {
    let listed = u32::try_from(settings.cpus.len()).unwrap_or(u32::MAX);
    let threads = match settings.threads {
        _ if !receives => 1,
        Some(threads) => threads.clamp(1, 2),
        None if listed > 0 => listed.min(2),
        // One thread per direction, if one more processor remains for the device and for other
        // work.
        None if usable.len() > 2 => 2,
        None => 1,
    };
    let refused = |object: String, situation: String, next_step: String| {
        Err(MeasureError::Generator {
            object,
            situation,
            next_step,
        })
    };
    // If the kernel does not report the usable processors, pinning detects the error.
    let is_there = |cpu: &u32| usable.is_empty() || usable.contains(cpu);
    if let Some(cpu) = settings.cpus.iter().find(|cpu| !is_there(cpu)) {
        return refused(
            format!("processor {cpu}"),
            "this process may not run there".to_owned(),
            format!("choose among {}", Cpus(usable.to_vec())),
        );
    }
    if listed == 0 || listed == threads {
        return Ok(threads);
    }
    refused(
        format!("--cpu {}", Cpus(settings.cpus.clone())),
        match (listed, threads) {
            (1, _) => format!("1 processor is listed for {threads} threads"),
            (_, 1) => format!("{listed} processors are listed for 1 thread"),
            _ => format!("{listed} processors are listed for {threads} threads"),
        },
        match threads {
            1 if receives => "list one, or poll with --threads 2".to_owned(),
            1 => "list one: only one thread sends".to_owned(),
            _ if listed == 1 => {
                "list one for each, the sending one first, or poll with --threads 1".to_owned()
            }
            _ => "list two, the sending one first".to_owned(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_for_each_thread_that_there_is() {
        let of = |threads, cpus: &[u32], receives| {
            let settings = Settings {
                threads,
                cpus: cpus.to_vec(),
                ..Settings::default()
            };
            of(&settings, receives, &[0, 1, 2]).map_err(|error| {
                let problem = error.problem();
                format!(
                    "{}: {}: {}",
                    problem.object, problem.situation, problem.next_step
                )
            })
        };
        for (threads, cpus, receives, want) in [
            (None, &[][..], true, 2),
            (None, &[], false, 1),
            (Some(1), &[], true, 1),
            (None, &[1], true, 1),
            (None, &[2, 0], true, 2),
            (Some(2), &[2, 0], true, 2),
            (None, &[2], false, 1),
        ] {
            assert_eq!(
                of(threads, cpus, receives),
                Ok(want),
                "{threads:?} {cpus:?}"
            );
        }
        for (threads, cpus, receives, want) in [
            (
                None,
                &[99][..],
                true,
                "processor 99: this process may not run there: choose among 0-2",
            ),
            (
                None,
                &[0, 99],
                true,
                "processor 99: this process may not run there: choose among 0-2",
            ),
            (
                None,
                &[0, 1, 2],
                true,
                "--cpu 0-2: 3 processors are listed for 2 threads: list two, the sending one first",
            ),
            (
                Some(1),
                &[0, 1],
                true,
                "--cpu 0-1: 2 processors are listed for 1 thread: list one, or poll with --threads 2",
            ),
            (
                Some(2),
                &[1],
                true,
                "--cpu 1: 1 processor is listed for 2 threads: list one for each, the sending one first, or poll with --threads 1",
            ),
            (
                None,
                &[0, 1],
                false,
                "--cpu 0-1: 2 processors are listed for 1 thread: list one: only one thread sends",
            ),
        ] {
            assert_eq!(of(threads, cpus, receives), Err(want.to_owned()));
        }
    }
}
