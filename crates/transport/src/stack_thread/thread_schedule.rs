//! Scheduling of a stack's threads, and conflicts with other threads.

use linerate_record::plan::SchedPolicy;
use linerate_record::stack::StackFacts;
use linerate_stack::StackConfig;
use linerate_stack::config::ThreadConfig;

use crate::TransportError;

/// Returns the highest real-time priority of the stack's threads, if any is real-time.
#[must_use]
pub fn real_time_priority(stack: &StackFacts) -> Option<u8> {
    let of = |name: &str| -> Option<u8> {
        let sched: SchedPolicy = stack.config_value(name).parse().ok()?;
        sched.real_time_priority()
    };
    let driver = match stack.config_value("threads.count") {
        "2" => of("threads.driver.sched"),
        _ => None,
    };
    driver.max(of("threads.application.sched"))
}

/// Returns whether a real-time thread never sleeps: other threads only run while the kernel
/// throttles it.
#[must_use]
pub fn never_sleeps(stack: &StackFacts) -> bool {
    stack.config_value("poll.interval") == "spin" && real_time_priority(stack).is_some()
}

/// Rejects two threads of which one would never run: on one processor, without sleep, a real-time
/// thread never yields to one of its own priority or below.
///
/// # Errors
/// [`TransportError::OptionRejected`] with the settings to change.
pub fn check_threads(config: &StackConfig, usable: &[u32]) -> Result<(), TransportError> {
    if config.threads < 2 || config.poll_interval.is_some() {
        return Ok(());
    }
    let allowed_on = |thread: &ThreadConfig| match thread.cpus.0.is_empty() {
        true => usable.to_vec(),
        false => thread.cpus.0.clone(),
    };
    let (driver, application) = (&config.driver, &config.application);
    // A thread bound to one processor waits there for the spinning one; the scheduler cannot move
    // it.
    let starved_on = |above: &ThreadConfig, below: &ThreadConfig| -> Option<u32> {
        let [processor] = allowed_on(below)[..] else {
            return None;
        };
        let shares_processor = allowed_on(above).contains(&processor);
        (shares_processor && starves(above.sched, below.sched)).then_some(processor)
    };
    let (above, below, processor) = match (
        starved_on(driver, application),
        starved_on(application, driver),
    ) {
        (Some(processor), _) => ("driver", "application", processor),
        (None, Some(processor)) => ("application", "driver", processor),
        (None, None) => return Ok(()),
    };
    Err(TransportError::OptionRejected {
        option: format!(
            "--set threads.driver.sched={} with threads.application.sched={} where the {below} thread may only use \
             processor {processor}",
            driver.sched, application.sched
        ),
        why: format!(
            "with poll.interval=spin the {above} thread never sleeps, so the {below} thread would never run"
        ),
        next_step: "use --set poll.interval=125us, give each thread a processor of its own \
                    (threads.driver.cpus, threads.application.cpus), or use --set threads.count=1"
            .to_owned(),
    })
}

/// Returns whether a real-time thread that does not sleep starves another real-time one on its
/// processor. (A thread that is not real-time runs while the kernel throttles the other.)
fn starves(spinning: SchedPolicy, waiting: SchedPolicy) -> bool {
    let (Some(spinning_priority), Some(waiting_priority)) =
        (spinning.real_time_priority(), waiting.real_time_priority())
    else {
        return false;
    };
    let is_round_robin =
        matches!(spinning, SchedPolicy::RoundRobin(_)) && spinning_priority == waiting_priority;
    spinning_priority >= waiting_priority && !is_round_robin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(settings: &[(&str, &str)]) -> StackFacts {
        let pairs = settings.iter();
        StackFacts {
            configuration: pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..StackFacts::default()
        }
    }

    #[test]
    fn only_existing_threads_count() {
        let driver = ("threads.driver.sched", "fifo:80");
        let application = ("threads.application.sched", "rr:50");
        let one = ("threads.count", "1");
        let two = ("threads.count", "2");
        for (settings, expected) in [
            (&[][..], None),
            (&[one, driver], None),
            (&[one, driver, application], Some(50)),
            (&[two, driver, application], Some(80)),
            (&[two, ("threads.driver.sched", "inherited")], None),
        ] {
            assert_eq!(
                real_time_priority(&facts(settings)),
                expected,
                "{settings:?}"
            );
            let mut spinning = settings.to_vec();
            spinning.push(("poll.interval", "spin"));
            assert_eq!(
                never_sleeps(&facts(&spinning)),
                expected.is_some(),
                "{settings:?}"
            );
            spinning.push(("poll.interval", "125us"));
            assert!(!never_sleeps(&facts(&spinning)), "{settings:?}");
        }
    }

    /// Without the check such a stack never became ready, and could not be stopped either.
    #[test]
    fn threads_that_starve_each_other_are_rejected() {
        let tuned = "threads.driver.sched=fifo:80 threads.application.sched=fifo:50";
        let reversed = "threads.driver.sched=fifo:50 threads.application.sched=fifo:80";
        let equal = "threads.driver.sched=fifo:50 threads.application.sched=fifo:50";
        let round_robin = "threads.driver.sched=rr:50 threads.application.sched=rr:50";
        let one_real_time = "threads.driver.sched=fifo:80 threads.application.sched=inherited";
        for (settings, usable, rejection) in [
            (tuned, &[3][..], Some("application thread would never")),
            (reversed, &[3], Some("driver thread would never")),
            (equal, &[3], Some("application thread would never")),
            (round_robin, &[3], None),
            (one_real_time, &[3], None),
            (tuned, &[0, 1], None),
            (
                "threads.driver.sched=fifo:80 threads.application.sched=fifo:50 threads.driver.cpus=1 \
                 threads.application.cpus=1",
                &[0, 1],
                Some("may only use processor 1"),
            ),
            // As with `--cpu 0`.
            (
                "threads.driver.sched=fifo:80 threads.application.sched=fifo:50 threads.application.cpus=0",
                &[0, 1],
                Some("application thread may only use processor 0"),
            ),
            (
                "threads.driver.sched=fifo:50 threads.application.sched=fifo:80 threads.driver.cpus=1",
                &[0, 1],
                Some("driver thread may only use processor 1"),
            ),
            (
                "threads.driver.sched=fifo:80 threads.application.sched=fifo:50 threads.driver.cpus=0",
                &[0, 1],
                None,
            ),
            (
                "threads.driver.sched=fifo:80 threads.application.sched=fifo:50 threads.driver.cpus=0 \
                 threads.application.cpus=1",
                &[0, 1],
                None,
            ),
            (
                "threads.driver.sched=fifo:80 threads.application.sched=fifo:50 poll.interval=125us",
                &[3],
                None,
            ),
            (
                "threads.driver.sched=fifo:80 threads.application.sched=fifo:50 threads.count=1",
                &[3],
                None,
            ),
        ] {
            let mut config = StackConfig::profile("embedded-tuned").unwrap();
            for setting in settings.split_whitespace() {
                config.apply(setting).unwrap();
            }
            let result = check_threads(&config, usable).map_err(|error| error.to_string());
            match rejection {
                None => assert_eq!(result, Ok(()), "{settings} on {usable:?}"),
                Some(expected) => {
                    let text = result.unwrap_err();
                    assert!(text.contains(expected), "{settings} on {usable:?}: {text}");
                }
            }
        }
    }
}
