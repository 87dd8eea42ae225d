//! The section `roce` of node.json: what every rail's port must be set to. `railctl doctor`
//! compares; nothing sets it.

use anyhow::Result;
use serde::Deserialize;

use crate::fail;

/// The operator's settings for the port of every rail. An absent key is not compared.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Roce {
    trust: Option<Trust>,
    pfc: Option<Vec<u8>>,
    /// The type of service of RDMA packets, 0 to 252: the DSCP in the upper six bits.
    pub tos: Option<u8>,
    /// Whether congestion is signalled (DCQCN).
    pub ecn: Option<bool>,
}

/// The source of a packet's priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// The VLAN tag.
    Pcp,
    /// The IP header.
    Dscp,
}

impl Roce {
    /// The trust that the ports must have: a `tos` needs the DSCP.
    pub fn trust(&self) -> Option<Trust> {
        self.trust.or(self.tos.map(|_| Trust::Dscp))
    }

    /// The priorities with priority flow control, as bits.
    pub fn pfc(&self) -> Option<u8> {
        self.pfc.as_ref().map(|list| {
            list.iter()
                .fold(0, |bits, priority| bits | 1u8 << (priority & 7))
        })
    }

    /// Fails if a value is out of its range, or if no port could satisfy all of them.
    pub fn check(&self) -> Result<()> {
        if let Some(wrong) = self.pfc.iter().flatten().find(|priority| **priority > 7) {
            fail!(
                InvalidConfig,
                "roce.pfc: {wrong} must be a priority, 0 to 7"
            );
        }
        let Some(tos) = self.tos else { return Ok(()) };
        if tos & 3 != 0 {
            let dscp = tos >> 2;
            fail!(
                InvalidConfig,
                "roce.tos: the lowest two bits of {tos} are ECN: use {}, which is DSCP {dscp}",
                dscp << 2
            );
        }
        if self.trust == Some(Trust::Pcp) {
            fail!(
                InvalidConfig,
                "roce.tos: ports with \"trust\": \"pcp\" ignore it: remove one of them"
            );
        }
        if self.pfc() == Some(0) {
            fail!(
                InvalidConfig,
                "roce.tos: with \"pfc\": [] no priority is lossless: remove one of them"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(value: Value) -> Result<Roce> {
        let roce: Roce = serde_json::from_value(value)?;
        roce.check()?;
        Ok(roce)
    }

    #[test]
    fn only_what_a_port_can_satisfy_is_accepted() {
        let all = parsed(json!({"trust": "dscp", "pfc": [3, 5], "tos": 96, "ecn": true})).unwrap();
        assert_eq!(
            (all.trust(), all.pfc(), all.tos),
            (Some(Trust::Dscp), Some(0b10_1000), Some(96))
        );
        assert_eq!(
            parsed(json!({"tos": 96})).unwrap().trust(),
            Some(Trust::Dscp)
        );
        let none = parsed(json!({"trust": "pcp", "pfc": []})).unwrap();
        assert_eq!((none.trust(), none.pfc()), (Some(Trust::Pcp), Some(0)));
        assert_eq!(parsed(json!({})).unwrap().pfc(), None);
        let mut said = Vec::new();
        for (wrong, told) in [
            (json!({"pfc": [3, 8]}), "roce.pfc: 8 "),
            (json!({"pfc": 3}), "`3`"),
            (json!({"trust": "both"}), "both"),
            (json!({"tos": 256}), "256"),
            (json!({"tos": 98}), "96"),
            (json!({"tos": 96, "trust": "pcp"}), "pcp"),
            (json!({"tos": 96, "pfc": []}), "tos"),
            (json!({"dscp": 24}), "dscp"),
        ] {
            let error = format!("{:#}", parsed(wrong.clone()).unwrap_err());
            assert!(error.contains(told), "{wrong}: {error}");
            said.push(error);
        }
        golden::says("plugins", "node.json: roce", said.join("\n"));
    }
}
