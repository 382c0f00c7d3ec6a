import { useLayoutEffect, useRef, useState, type RefObject } from "react";
import { useResizeForPrint } from "../print";

/** The width of an element in pixels, as it changes. */
export function useWidth<T extends HTMLElement>(): [RefObject<T | null>, number] {
  const ref = useRef<T>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    setWidth(element.clientWidth);
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useResizeForPrint(() => ref.current && setWidth(ref.current.clientWidth));
  return [ref, width];
}
