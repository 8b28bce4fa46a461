//! Number of polling threads, and their processors.

use linerate_port::FrameRunError;
use linerate_record::plan::CpuList;

/// Returns the number of polling threads: one per direction, or one for both.
///
/// # Errors
/// [`FrameRunError::Setup`] if a listed processor is not usable by this process, or if the
/// number of processors and threads differ.
pub(super) fn thread_count(
    requested: Option<u32>,
    cpus: &[u32],
    receives: bool,
    usable: &[u32],
) -> Result<u32, FrameRunError> {
    let listed_cpus = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
    let threads = match requested {
        _ if !receives => 1,
        Some(threads) => threads.clamp(1, 2),
        None if listed_cpus > 0 => listed_cpus.min(2),
        // One thread per direction, if one more processor remains for the device and for other
        // work.
        None if usable.len() > 2 => 2,
        None => 1,
    };
    let rejection = |object: String, situation: String, next_step: String| {
        Err(FrameRunError::Setup {
            object,
            situation,
            next_step,
        })
    };
    // If the kernel does not report the usable processors, pinning detects the error.
    let is_usable = |cpu: &u32| usable.is_empty() || usable.contains(cpu);
    if let Some(cpu) = cpus.iter().find(|cpu| !is_usable(cpu)) {
        return rejection(
            format!("CPU {cpu}"),
            "this process may not run there".to_owned(),
            format!("choose among {}", CpuList(usable.to_vec())),
        );
    }
    if listed_cpus == 0 || listed_cpus == threads {
        return Ok(threads);
    }
    rejection(
        format!("--cpu {}", CpuList(cpus.to_vec())),
        match (listed_cpus, threads) {
            (1, _) => format!("1 CPU is listed for {threads} threads"),
            (_, 1) => format!("{listed_cpus} CPUs are listed for 1 thread"),
            _ => format!("{listed_cpus} CPUs are listed for {threads} threads"),
        },
        match threads {
            1 if receives => "list one, or poll with --threads 2".to_owned(),
            1 => "list one: only one thread sends".to_owned(),
            _ if listed_cpus == 1 => {
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
        let thread_count_of = |threads, cpus: &[u32], receives| {
            thread_count(threads, cpus, receives, &[0, 1, 2]).map_err(|error| {
                let problem = error.to_report();
                format!(
                    "{}: {}: {}",
                    problem.object, problem.situation, problem.next_step
                )
            })
        };
        for (threads, cpus, receives, expected) in [
            (None, &[][..], true, 2),
            (None, &[], false, 1),
            (Some(1), &[], true, 1),
            (None, &[1], true, 1),
            (None, &[2, 0], true, 2),
            (Some(2), &[2, 0], true, 2),
            (None, &[2], false, 1),
        ] {
            assert_eq!(
                thread_count_of(threads, cpus, receives),
                Ok(expected),
                "{threads:?} {cpus:?}"
            );
        }
        for (threads, cpus, receives, expected) in [
            (
                None,
                &[99][..],
                true,
                "CPU 99: this process may not run there: choose among 0-2",
            ),
            (
                None,
                &[0, 99],
                true,
                "CPU 99: this process may not run there: choose among 0-2",
            ),
            (
                None,
                &[0, 1, 2],
                true,
                "--cpu 0-2: 3 CPUs are listed for 2 threads: list two, the sending one first",
            ),
            (
                Some(1),
                &[0, 1],
                true,
                "--cpu 0-1: 2 CPUs are listed for 1 thread: list one, or poll with --threads 2",
            ),
            (
                Some(2),
                &[1],
                true,
                "--cpu 1: 1 CPU is listed for 2 threads: list one for each, the sending one first, or poll with --threads 1",
            ),
            (
                None,
                &[0, 1],
                false,
                "--cpu 0-1: 2 CPUs are listed for 1 thread: list one: only one thread sends",
            ),
        ] {
            assert_eq!(
                thread_count_of(threads, cpus, receives),
                Err(expected.to_owned())
            );
        }
    }
}
