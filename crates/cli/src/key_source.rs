//! `--key`: source of the shared secret.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Once;

use linerate_measure::{Key, SECRET_MAX_BYTES};
use linerate_metric::event::Problem;

use crate::failure::Failure;
use crate::output::complain;

/// Variable that `--key env` reads.
pub const VARIABLE: &str = "LINERATE_SECRET";

/// Source of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Content of a file.
    File(PathBuf),
    /// Environment variable.
    Variable(String),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("env") {
            Some("") => Ok(Self::Variable(VARIABLE.to_owned())),
            Some(name) if name.starts_with(':') => match &name[1..] {
                "" => Err(format!(
                    "no variable is named: write env:NAME, or env for {VARIABLE}"
                )),
                name => Ok(Self::Variable(name.to_owned())),
            },
            _ if text.is_empty() => Err("no file is named".to_owned()),
            _ => Ok(Self::File(text.into())),
        }
    }
}

impl Source {
    /// Reads the key, with a warning if other users can read its file.
    pub fn read(&self) -> Result<Key, Failure> {
        let (object, secret) = match self {
            Self::File(file) => (file.display().to_string(), self.read_file(file)?),
            Self::Variable(name) => {
                let secret = std::env::var_os(name).ok_or_else(|| {
                    refused(
                        "the variable is not set",
                        &format!("--key env:{name}"),
                        format!("export {name}=…, or name a file: --key FILE"),
                    )
                })?;
                let object = format!("variable {name}");
                (object, secret.into_encoded_bytes())
            }
        };
        Key::new(&secret).map_err(|error| {
            let text = error.to_string();
            let (situation, step) = text.split_once(": ").unwrap_or((&text, "choose another"));
            refused(situation, &format!("--key, {object}"), step.to_owned())
        })
    }

    fn read_file(&self, path: &PathBuf) -> Result<Vec<u8>, Failure> {
        let failed = |error: std::io::Error| {
            refused(
                &format!("the key cannot be read: {error}"),
                &format!("--key {}", path.display()),
                "make one for both ends: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE"
                    .to_owned(),
            )
        };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            // Printed once, because a series of runs reads the key for each run.
            static TOLD: Once = Once::new();
            let (path, mode) = (path.display(), mode & 0o777);
            TOLD.call_once(|| {
                complain(&format!(
                    "warning: others may read the key {path} (mode {mode:o}): chmod 600 {path}"
                ));
            });
        }
        let mut secret = Vec::new();
        // Limits the read: a device or a growing log has no end.
        let most = SECRET_MAX_BYTES as u64 + 1_000;
        file.take(most).read_to_end(&mut secret).map_err(failed)?;
        Ok(secret)
    }
}

fn refused(situation: &str, object: &str, next_step: String) -> Failure {
    Failure::usage(Problem::new(situation, object, next_step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_variables_are_told_apart() {
        let variable = |name: &str| Ok(Source::Variable(name.to_owned()));
        let file = |path: &str| Ok(Source::File(path.into()));
        assert_eq!("env".parse(), variable(VARIABLE));
        assert_eq!("env:TOKEN".parse(), variable("TOKEN"));
        assert_eq!("./env".parse(), file("./env"));
        assert_eq!("environment".parse(), file("environment"));
        assert_eq!("/run/key".parse(), file("/run/key"));
        assert!("env:".parse::<Source>().is_err());
        assert!("".parse::<Source>().is_err());
    }

    #[test]
    fn what_is_no_secret_is_refused_with_a_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let source = Source::File(path.clone());
        let failure = source.read().unwrap_err();
        assert!(failure.problem.next_step.contains("/dev/urandom"));
        std::fs::write(&path, "short\n").unwrap();
        let failure = source.read().unwrap_err();
        assert!(failure.problem.situation.contains("5 B"), "{failure:?}");
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        assert!(source.read().is_err());
        std::fs::write(&path, "long enough to be one\n").unwrap();
        assert_eq!(
            source.read().unwrap(),
            Key::new(b"long enough to be one").unwrap()
        );
        assert!(
            Source::Variable("LINERATE_NOBODY_SETS_THIS".to_owned())
                .read()
                .is_err()
        );
    }
}
