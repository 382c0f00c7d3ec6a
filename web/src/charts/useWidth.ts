import { usePrinting } from "../print";
import { useLayoutEffect, useRef, useState, type RefObject } from "react";

/** The width of an element in pixels, as it changes. */
export function useWidth<T extends HTMLElement>(): [RefObject<T | null>, number] {
  const ref = useRef<T>(null);
  const [width, setWidth] = useState(0);
  const printing = usePrinting();
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    setWidth(element.clientWidth);
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  // An observer would be called too late.
  useLayoutEffect(() => {
    if (printing && ref.current) setWidth(ref.current.clientWidth);
  }, [printing]);
  return [ref, width];
}
