//! Who may run now: worlds share the machine, heavy ones have it alone. Two cores bear no more.

use std::sync::{Arc, Condvar, Mutex};

/// A place among the running tests of this process; held by every world of one test.
pub struct Turn {
    alone: bool,
}

#[derive(Default)]
struct Running {
    shared: u32,
    alone: bool,
    waiting_alone: u32,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { shared: 0, alone: false, waiting_alone: 0 });
static CHANGED: Condvar = Condvar::new();

impl Turn {
    /// Runs beside other shared turns; lets heavy tests that wait go first.
    pub fn shared() -> Arc<Turn> {
        let running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let busy = |r: &mut Running| r.alone || r.waiting_alone > 0;
        let mut running =
            CHANGED.wait_while(running, busy).unwrap_or_else(|poisoned| poisoned.into_inner());
        running.shared += 1;
        Arc::new(Turn { alone: false })
    }

    /// Runs while no other turn is held.
    pub fn alone() -> Arc<Turn> {
        let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        running.waiting_alone += 1;
        let busy = |r: &mut Running| r.alone || r.shared > 0;
        let mut running =
            CHANGED.wait_while(running, busy).unwrap_or_else(|poisoned| poisoned.into_inner());
        running.waiting_alone -= 1;
        running.alone = true;
        Arc::new(Turn { alone: true })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.alone {
            running.alone = false;
        } else {
            running.shared -= 1;
        }
        CHANGED.notify_all();
    }
}
