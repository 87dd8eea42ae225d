//! `resetOnDel`: a function-level reset when the device returns from a pod. ADD changes nothing for
//! it.

use anyhow::Result;

use super::bind;
use crate::attach::context::Cx;
use crate::attach::step::{Asked, Phase, Step, UndoneAt};
use crate::fail;
use crate::sysfs::Function;
use rail_netlink::link;

/// The function is reset when it returns from the pod.
#[derive(Debug)]
pub struct Reset;

impl Step for Reset {
    fn describe(&self) -> &'static str {
        "the reset of its device"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Device
    }

    /// An ADD without an address is tried again and again, and no pod has had the device.
    fn phase() -> Phase {
        Phase::AfterLease
    }

    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<Reset>> {
        let is_new = asked.conf.reset_on_del && !cx.facts.is_reset;
        Ok(is_new.then_some(Reset))
    }

    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        reset(cx)
    }
}

/// Resets the function. Its driver is unbound meanwhile, unless it is a userspace driver.
fn reset(cx: &mut Cx<'_>) -> Result<()> {
    let Some(function) = cx.function.clone().filter(Function::exists) else {
        return Ok(());
    };
    let had_netdev = cx.at_home();
    if let Some(link) = had_netdev.as_ref().filter(|link| link.up) {
        link::set_down(&mut cx.host, link)?;
    }
    let done = match cx.facts.driver.clone() {
        Some(bound) if function.driver().is_some() && !function.is_userspace() => {
            bind::bind_again(&bound, Function::flr, cx)
        }
        _ => function.flr(),
    };
    if had_netdev.is_some() {
        cx.await_home()?;
        if cx.at_home().is_none() && done.is_ok() {
            fail!(
                TryAgain,
                "{} has no netdev after its reset: see `dmesg`",
                function.id
            );
        }
    }
    done
}
