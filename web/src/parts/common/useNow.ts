import { useEffect, useState } from "react";
import { serviceTime } from "../../api/clock";

/** Return the time of the service in milliseconds, updated every second while `running`. */
export function useNow(running: boolean): number {
  const [now, setNow] = useState(() => serviceTime());
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => setNow(serviceTime()), 1000);
    return () => clearInterval(timer);
  }, [running]);
  return now;
}
