//! Where the threads of a stack stand among others, and whom that keeps from running.

use linerate_metric::plan::Sched;
use linerate_metric::stack::StackFacts;
use linerate_stack::Config;
use linerate_stack::config::Thread;

use crate::error::MeasureError;

/// The highest priority that threads of a stack have, where one of them is real-time.
#[must_use]
pub fn real_time_priority(stack: &StackFacts) -> Option<u8> {
    let of = |name: &str| -> Option<u8> {
        let sched: Sched = stack.key(name).parse().ok()?;
        sched.real_time_priority()
    };
    let driver = match stack.key("threads.count") {
        "2" => of("threads.driver.sched"),
        _ => None,
    };
    driver.max(of("threads.application.sched"))
}

/// Whether it has a real-time thread that never sleeps: whoever is not real-time waits for what the kernel leaves.
#[must_use]
pub fn never_sleeps(stack: &StackFacts) -> bool {
    stack.key("poll.interval") == "spin" && real_time_priority(stack).is_some()
}

/// Refuses two threads of which one never lets the other run: on one processor, neither of them sleeps, and a real-time
/// thread gives way to none of its own priority or below.
///
/// # Errors
/// [`MeasureError::OptionRefused`] with what to set.
pub fn check(config: &Config, usable: &[u32]) -> Result<(), MeasureError> {
    if config.threads < 2 || config.poll_interval.is_some() {
        return Ok(());
    }
    let on = |thread: &Thread| match thread.cpus.0.is_empty() {
        true => usable.to_vec(),
        false => thread.cpus.0.clone(),
    };
    let (driver, application) = (&config.driver, &config.application);
    // A thread that may run nowhere else waits for the one that does not sleep; the scheduler moves none that runs.
    let waits = |above: &Thread, below: &Thread| -> Option<u32> {
        let [processor] = on(below)[..] else {
            return None;
        };
        let meet = on(above).contains(&processor);
        (meet && keeps_from_running(above.sched, below.sched)).then_some(processor)
    };
    let (above, below, processor) = match (waits(driver, application), waits(application, driver)) {
        (Some(processor), _) => ("driver", "application", processor),
        (None, Some(processor)) => ("application", "driver", processor),
        (None, None) => return Ok(()),
    };
    Err(MeasureError::OptionRefused {
        option: format!(
            "--set threads.driver.sched={} with threads.application.sched={} where the {below}'s thread has processor \
             {processor} alone",
            driver.sched, application.sched
        ),
        why: format!(
            "with poll.interval=spin the {above}'s thread never sleeps, and the {below}'s would never run while that is there"
        ),
        next_step: "let them sleep (--set poll.interval=125us), give each a processor of its own \
                    (threads.driver.cpus, threads.application.cpus), or --set threads.count=1"
            .to_owned(),
    })
}

/// Whether a thread that does not sleep keeps another real-time one off their processor for ever. (One that is not
/// real-time gets what the kernel's throttle leaves.)
fn keeps_from_running(runs: Sched, waits: Sched) -> bool {
    let (Some(own), Some(other)) = (runs.real_time_priority(), waits.real_time_priority()) else {
        return false;
    };
    let in_turn = matches!(runs, Sched::RoundRobin(_)) && own == other;
    own >= other && !in_turn
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
    fn the_thread_that_is_there_counts() {
        let driver = ("threads.driver.sched", "fifo:80");
        let application = ("threads.application.sched", "rr:50");
        let one = ("threads.count", "1");
        let two = ("threads.count", "2");
        for (settings, want) in [
            (&[][..], None),
            (&[one, driver], None),
            (&[one, driver, application], Some(50)),
            (&[two, driver, application], Some(80)),
            (&[two, ("threads.driver.sched", "inherited")], None),
        ] {
            assert_eq!(real_time_priority(&facts(settings)), want, "{settings:?}");
            let mut spinning = settings.to_vec();
            spinning.push(("poll.interval", "spin"));
            assert_eq!(
                never_sleeps(&facts(&spinning)),
                want.is_some(),
                "{settings:?}"
            );
            spinning.push(("poll.interval", "125us"));
            assert!(!never_sleeps(&facts(&spinning)), "{settings:?}");
        }
    }

    /// Such a stack never stood, and whoever started it could not even end it.
    #[test]
    fn threads_that_never_let_each_other_run_are_refused() {
        let tuned = "threads.driver.sched=fifo:80 threads.application.sched=fifo:50";
        let reversed = "threads.driver.sched=fifo:50 threads.application.sched=fifo:80";
        let equal = "threads.driver.sched=fifo:50 threads.application.sched=fifo:50";
        let in_turn = "threads.driver.sched=rr:50 threads.application.sched=rr:50";
        let half = "threads.driver.sched=fifo:80 threads.application.sched=inherited";
        for (settings, usable, refused) in [
            (tuned, &[3][..], Some("application's would never")),
            (reversed, &[3], Some("driver's would never")),
            (equal, &[3], Some("application's would never")),
            (in_turn, &[3], None),
            (half, &[3], None),
            (tuned, &[0, 1], None),
            (
                "threads.driver.sched=fifo:80 threads.application.sched=fifo:50 threads.driver.cpus=1 \
                 threads.application.cpus=1",
                &[0, 1],
                Some("has processor 1 alone"),
            ),
            // As `--cpu 0` has it.
            (
                "threads.driver.sched=fifo:80 threads.application.sched=fifo:50 threads.application.cpus=0",
                &[0, 1],
                Some("application's thread has processor 0 alone"),
            ),
            (
                "threads.driver.sched=fifo:50 threads.application.sched=fifo:80 threads.driver.cpus=1",
                &[0, 1],
                Some("driver's thread has processor 1 alone"),
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
            let mut config = Config::profile("embedded-tuned").unwrap();
            for setting in settings.split_whitespace() {
                config.apply(setting).unwrap();
            }
            let found = check(&config, usable).map_err(|error| error.to_string());
            match refused {
                None => assert_eq!(found, Ok(()), "{settings} on {usable:?}"),
                Some(words) => {
                    let text = found.unwrap_err();
                    assert!(text.contains(words), "{settings} on {usable:?}: {text}");
                }
            }
        }
    }
}
