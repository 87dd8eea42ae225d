//! `resetOnDel`: a function-level reset when the device returns from a pod. ADD changes nothing for
//! it.

use anyhow::Result;

use super::driver;
use crate::attach::context::Cx;
use crate::fail;
use crate::sysfs::Function;
use rail_netlink::link;

/// Resets the function. Its driver is unbound meanwhile, unless it is a userspace driver.
pub fn undo(cx: &mut Cx<'_>) -> Result<()> {
    let Some(function) = cx.function.clone().filter(Function::exists) else {
        return Ok(());
    };
    let had_netdev = cx.at_home();
    if let Some(link) = had_netdev.as_ref().filter(|link| link.up) {
        link::set_down(&mut cx.host, link)?;
    }
    let done = match cx.facts.driver.clone() {
        Some(bound) if function.driver().is_some() && !function.is_userspace() => {
            driver::bind_again(&bound, Function::flr, cx)
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
