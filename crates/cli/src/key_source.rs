//! `--key`: source of the shared secret.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Once;

use linerate_protocol::control::{PresharedKey, SECRET_MAX_BYTES};
use linerate_record::event::ErrorReport;

use crate::failure::CommandFailure;
use crate::standard_streams::print_stderr;

/// Variable that `--key env` reads.
pub const VARIABLE: &str = "LINERATE_SECRET";

/// Source of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// Content of a file.
    File(PathBuf),
    /// Environment variable.
    Variable(String),
}

impl FromStr for KeySource {
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

impl KeySource {
    /// Reads the key, with a warning if other users can read its file.
    pub fn read(&self) -> Result<PresharedKey, CommandFailure> {
        let (object, secret) = match self {
            Self::File(file) => (file.display().to_string(), self.read_file(file)?),
            Self::Variable(name) => {
                let secret = std::env::var_os(name).ok_or_else(|| {
                    usage_failure(
                        "the variable is not set",
                        &format!("--key env:{name}"),
                        format!("export {name}=…, or name a file: --key FILE"),
                    )
                })?;
                let object = format!("variable {name}");
                (object, secret.into_encoded_bytes())
            }
        };
        PresharedKey::new(&secret).map_err(|error| {
            let text = error.to_string();
            let (situation, step) = text.split_once(": ").unwrap_or((&text, "choose another"));
            usage_failure(situation, &format!("--key, {object}"), step.to_owned())
        })
    }

    fn read_file(&self, path: &PathBuf) -> Result<Vec<u8>, CommandFailure> {
        let failed = |error: std::io::Error| {
            usage_failure(
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
            static WARNED: Once = Once::new();
            let (path, mode) = (path.display(), mode & 0o777);
            WARNED.call_once(|| {
                print_stderr(&format!(
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

fn usage_failure(situation: &str, object: &str, next_step: String) -> CommandFailure {
    CommandFailure::usage(ErrorReport::new(situation, object, next_step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_variables_are_distinguished() {
        let variable = |name: &str| Ok(KeySource::Variable(name.to_owned()));
        let file = |path: &str| Ok(KeySource::File(path.into()));
        assert_eq!("env".parse(), variable(VARIABLE));
        assert_eq!("env:TOKEN".parse(), variable("TOKEN"));
        assert_eq!("./env".parse(), file("./env"));
        assert_eq!("environment".parse(), file("environment"));
        assert_eq!("/run/key".parse(), file("/run/key"));
        assert!("env:".parse::<KeySource>().is_err());
        assert!("".parse::<KeySource>().is_err());
    }

    #[test]
    fn invalid_secrets_are_rejected_with_a_next_step() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let source = KeySource::File(path.clone());
        let failure = source.read().unwrap_err();
        assert!(failure.problem.next_step.contains("/dev/urandom"));
        std::fs::write(&path, "short\n").unwrap();
        let failure = source.read().unwrap_err();
        assert!(failure.problem.situation.contains("(5)"), "{failure:?}");
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        assert!(source.read().is_err());
        std::fs::write(&path, "long enough to be one\n").unwrap();
        assert_eq!(
            source.read().unwrap(),
            PresharedKey::new(b"long enough to be one").unwrap()
        );
        assert!(
            KeySource::Variable("LINERATE_NOBODY_SETS_THIS".to_owned())
                .read()
                .is_err()
        );
    }
}
