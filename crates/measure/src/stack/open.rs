//! A stack from its plan: configuration, addresses, port, memory.

use linerate_metric::stack::{StackFacts, StackPlan};
use linerate_port::{Memory, PortUrl};
use linerate_stack::{Addressing, Config, Stack, StackError, memory_plan, port_url};

use super::facts;
use crate::error::MeasureError;

/// The configuration of a plan: its profile, with what was changed.
///
/// # Errors
/// [`StackError`] with the key, its value and what it takes.
pub fn config(plan: &StackPlan) -> Result<Config, StackError> {
    let mut config = Config::profile(&plan.profile)?;
    for (key, value) in &plan.configuration {
        config.set(key, value)?;
    }
    Ok(config)
}

/// Who the stack is to be.
///
/// # Errors
/// [`StackError::BadNetwork`], and what contradicts itself.
pub fn addressing(plan: &StackPlan) -> Result<Addressing, StackError> {
    let addresses: Vec<&str> = plan.addresses.iter().map(String::as_str).collect();
    let mut addressing = Addressing::new(&addresses)?;
    for gateway in &plan.gateways {
        let address = gateway.parse().map_err(|_| StackError::BadNetwork {
            text: gateway.clone(),
        })?;
        addressing.gateways.push(address);
    }
    addressing.seed = fastrand::u64(..);
    Ok(addressing)
}

/// The port's URL, with descriptors and MTU of the configuration where it says nothing.
///
/// # Errors
/// What the URL says wrong.
pub fn url(config: &Config, plan: &StackPlan) -> Result<PortUrl, MeasureError> {
    Ok(port_url(config, &plan.device)?)
}

/// Opens the port and makes the stack, with all the memory that it will ever use.
///
/// # Errors
/// Why the port cannot be opened, and what the configuration asks for that it cannot do.
pub fn open(plan: &StackPlan) -> Result<(Stack, StackFacts), MeasureError> {
    let config = config(plan)?;
    let addressing = addressing(plan)?;
    let url = url(&config, plan)?;
    let memory = Memory::new(memory_plan(&config, &url))?;
    let mut ports = linerate_port::open(&url, &memory)?;
    let port = match (ports.pop(), ports.is_empty()) {
        (Some(port), true) => port,
        _ => {
            return Err(MeasureError::OptionRefused {
                option: format!("--dev {}", plan.device),
                why: "the stack polls one queue, and this port has several".to_owned(),
                next_step: "name one of them: q=0".to_owned(),
            });
        }
    };
    let stack = Stack::new(port, &memory, &config, &addressing)?;
    let facts = facts::of(plan, &config, &url, &stack);
    Ok((stack, facts))
}
